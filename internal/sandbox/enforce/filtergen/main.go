//go:build cgo && filtergen

// Filtergen compiles the tables of internal/sandbox/enforce/internal/seccomp into seccomp
// programs with libseccomp 2.5.4, as Debian 12 has it:
//
//	go generate ./internal/sandbox/enforce
//
// With -check it writes nothing and fails if a committed program differs. If
// another version of libseccomp is installed, filtergen exits with status 3 and
// compiles nothing, because that version may make different programs with the
// same meaning, so a difference would prove nothing.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/execagent/execagent/internal/sandbox/enforce/internal/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang"
)

// version is the libseccomp that the committed programs come from.
const version = "2.5.4"

// errVersion says that another version of libseccomp is installed.
var errVersion = errors.New("the programs are compiled with libseccomp " + version)

func main() {
	dir := flag.String("dir", "filters", "the `directory` of the programs")
	check := flag.Bool("check", false, "compare only")
	flag.Parse()
	err := run(*dir, *check)
	switch {
	case errors.Is(err, errVersion):
		fmt.Fprintln(os.Stderr, "filtergen:", err)
		os.Exit(3)
	case err != nil:
		fmt.Fprintln(os.Stderr, "filtergen:", err)
		os.Exit(1)
	}
}

// run compiles every table for every architecture.
func run(dir string, check bool) error {
	major, minor, micro := libseccomp.GetLibraryVersion()
	if got := fmt.Sprintf("%d.%d.%d", major, minor, micro); got != version {
		return fmt.Errorf("%w, this is %s", errVersion, got)
	}
	for _, target := range []target{amd64, arm64} {
		for _, table := range seccomp.Tables() {
			path := filepath.Join(dir, target.name, table.Name+".bpf")
			program, err := compile(table, target)
			if err != nil {
				return fmt.Errorf("compiling %s: %w", path, err)
			}
			if check {
				err = compare(path, program)
			} else {
				err = os.WriteFile(path, program, 0o644)
				fmt.Printf("%s: %d instructions\n", path, len(program)/instructionSize)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// compare fails if the file does not have the program.
func compare(path string, program []byte) error {
	committed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(committed, program) {
		return fmt.Errorf("%s differs from its table: run go generate ./internal/sandbox/enforce", path)
	}
	return nil
}
