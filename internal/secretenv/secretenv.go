// Package secretenv takes secrets out of the environment of this process. Every
// process of the same user can read in /proc/PID/environ the variables that a
// process was started with, and child processes inherit the variables. So this
// package moves secrets to memory that neither of them shows.
//
// Linux only.
package secretenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/execagent/execagent/internal/linux"
)

// Secrets are variables as NAME=VALUE. They are bytes and not strings so that
// [Secrets.Clear] can overwrite them once they are not needed any more: a
// command of a client may be able to read the memory of the agent.
type Secrets [][]byte

// Lookup returns a copy of the value of a variable. If several have that name
// the last one counts.
func (s Secrets) Lookup(name string) (value string, ok bool) {
	for _, entry := range s {
		if n, v, _ := bytes.Cut(entry, []byte("=")); string(n) == name {
			value, ok = string(v), true
		}
	}
	return value, ok
}

// Clear overwrites the secrets. The copies that Lookup has returned stay as they
// are.
func (s Secrets) Clear() {
	for _, entry := range s {
		clear(entry)
	}
}

// Take returns the environment of this process in two parts: rest has the
// variables that commands may inherit, and secrets has those for whose names
// denied returns true. The denied ones are removed from the variables of this
// process, and overwritten in the memory that /proc/PID/environ shows. With an
// error both parts are returned too, but secrets may still be found in that
// memory.
//
// A variable with one of the names in harmless is denied and no secret, such as
// a switch of the agent itself: it is in neither part, and remains a variable
// of this process.
//
// Take is called before the program starts a process, and while nobody else reads variables. It
// may be called again for other names, which the earlier rest keeps.
func Take(denied func(name string) bool, harmless ...string) (rest []string, secrets Secrets, err error) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !denied(name) {
			rest = append(rest, strings.Clone(entry)) // a later call may clear the bytes
			continue
		}
		if slices.Contains(harmless, name) {
			continue
		}
		secrets = append(secrets, []byte(entry))
		err = errors.Join(err, os.Unsetenv(name))
		// The runtime copied the environment to the heap when it started. entry
		// shares the bytes of that copy, which is never freed. After Unsetenv
		// nobody reads them any more, so they can be overwritten.
		clear(unsafe.Slice(unsafe.StringData(entry), len(entry)))
	}
	if len(secrets) > 0 {
		err = errors.Join(err, clearDenied(denied))
	}
	return rest, secrets, err
}

// clearDenied overwrites the entries of denied names in the memory where the
// kernel has put the environment: strings that end with a NUL each,
// proc_pid_environ(5).
func clearDenied(denied func(name string) bool) error {
	start, end, err := environRegion()
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	region := make([]byte, end-start)
	defer clear(region)
	if _, err := memory.ReadAt(region, start); err != nil {
		return fmt.Errorf("reading the environment: %w", err)
	}
	offset := start
	for entry := range bytes.SplitSeq(region, []byte{0}) {
		if name, _, _ := bytes.Cut(entry, []byte("=")); denied(string(name)) {
			if _, err := memory.WriteAt(make([]byte, len(entry)), offset); err != nil {
				return fmt.Errorf("clearing %s: %w", name, err)
			}
		}
		offset += int64(len(entry)) + 1
	}
	return nil
}

// environRegion returns the addresses between which the kernel has put the
// environment.
func environRegion() (start, end int64, err error) {
	stat, err := linux.ReadStat("/proc/self")
	if err != nil {
		return 0, 0, err
	}
	start, end = int64(stat.Number(linux.StatEnvironStart)), int64(stat.Number(linux.StatEnvironEnd))
	// The kernel bounds the environment too: see ARG_MAX in execve(2).
	const limit = 1 << 30
	if start <= 0 || end < start || end-start > limit {
		return 0, 0, fmt.Errorf("environment from %d to %d is out of range", start, end)
	}
	return start, end, nil
}
