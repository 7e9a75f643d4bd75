// Command intruder is what runs inside a sandbox in the tests of test/hostile. Its first argument
// says what it does:
//
//	calls BASE         makes the file calls of the sequences that stdin asks for
//	job BASE ROUNDS    writes in many processes, and tries to write where it must not
//	race KIND BASE MS  makes calls while it changes their objects
//	deaths BASE MS     kills processes in the middle of such calls
//	flood KIND BASE N  makes calls that cost its supervisor much, from N threads
//	pace BASE MS       prints how many files a second it can create and remove
//
// It judges nothing, and refuses to run where nothing confines it. Linux only.
//
// The setting below keeps the runtime from opening files of its control group.
//
//go:debug containermaxprocs=0
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// parts are what this program can do, by the first argument. They get the others.
var parts = map[string]func(args []string) error{
	"calls":  makeCalls,
	"job":    startJob,
	"work":   work,
	"race":   startRace,
	"deaths": startDeaths,
	"flood":  startFlood,
	"pace":   startPace,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "intruder:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || parts[args[0]] == nil {
		return fmt.Errorf("no such part: %q", args)
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil || mode != unix.SECCOMP_MODE_FILTER {
		return fmt.Errorf("nothing confines this process: %d, %w", mode, err)
	}
	return parts[args[0]](args[1:])
}
