// Command sandboxbench measures what a sandbox costs a command: single calls, everyday programs
// and the start, unconfined, under Landlock alone, in namespaces, and supervised in levels W and S,
// all in one run:
//
//	make bench-supervised
//
// It needs Linux and root, for a tmpfs of its own, and git, gcc, make, tar and grep. Compare the
// ratio of two columns, because machines are noisy.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The first argument of this program where it measures from inside, or launches what does.
const (
	callsArg     = "measure-calls"
	timeArg      = "measure-time"
	continuedArg = "continue-creations"
	mountedArg   = "in-own-mounts"
)

func main() {
	if len(os.Args) > 1 {
		switch inside := os.Args[1]; inside {
		case callsArg:
			exit(measureCalls(os.Args[2:]))
		case timeArg:
			exit(measureTime(os.Args[2:]))
		case continuedArg:
			exit(continueCreations(os.Args[2:]))
		}
	}
	var b bench
	flag.StringVar(&b.agent, "agent", "bin/agent", "our program")
	flag.StringVar(&b.launcher, "nouserns", "bin/nouserns", "the launcher of test/rig/nouserns")
	flag.StringVar(&b.disk, "disk", "/var/tmp", "a directory on a disk")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds over all ways")
	flag.StringVar(&b.only, "only", "", "names of rows, with semicolons between them; calls is all calls; empty is everything")
	mounted := flag.Bool(mountedArg, false, "internal: the process has mounts of its own")
	flag.Parse()
	if !*mounted {
		exit(relaunch())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(b.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxbench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// relaunch runs this program again with mounts of its own, where it mounts its tmpfs.
func relaunch() error {
	cmd := exec.Command("/proc/self/exe", append([]string{"-" + mountedArg}, os.Args[1:]...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// bench is one run.
type bench struct {
	agent, launcher, disk, only string
	rounds                      int

	self    string // this program, where every way can execute it
	base    string // a directory on the disk, with all that is made
	results results
}

// run measures everything in rounds, so that noise hits all ways alike, and prints the table.
func (b *bench) run(ctx context.Context) (err error) {
	for _, program := range []*string{&b.agent, &b.launcher} {
		if *program, err = filepath.Abs(*program); err != nil {
			return err
		}
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.base, err = os.MkdirTemp(b.disk, "sandboxbench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.base)
	memory := filepath.Join(b.base, "tmpfs")
	if err := os.Mkdir(memory, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Mount("tmpfs", memory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	defer unix.Unmount(memory, unix.MNT_DETACH)
	places := []place{{"tmpfs", filepath.Join(memory, "trees")}, {"disk", filepath.Join(b.base, "trees")}}
	for _, p := range places {
		if err := p.prepare(ctx); err != nil {
			return err
		}
	}
	b.results = results{}
	for round := range b.rounds {
		for _, p := range places {
			if err := b.measure(ctx, p, round); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.rounds)
	}
	b.results.print()
	return nil
}
