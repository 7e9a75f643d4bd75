// Package secretenv takes secrets out of the environment of this process. Whoever
// runs as the same user reads in /proc/PID/environ what a process was started
// with, and what it starts inherits its variables; so secrets are moved to where
// neither finds them.
//
// Linux only.
package secretenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Secrets are variables as NAME=VALUE. They are bytes, so that whoever needs them no
// longer can clear them: a client may read the memory of the agent that it uses.
type Secrets [][]byte

// Lookup finds a variable; of several the last one.
func (s Secrets) Lookup(name string) (value string, ok bool) {
	for _, entry := range s {
		if n, v, _ := bytes.Cut(entry, []byte("=")); string(n) == name {
			value, ok = string(v), true
		}
	}
	return value, ok
}

// Clear overwrites the secrets. Values that Lookup has returned are copies.
func (s Secrets) Clear() {
	for _, entry := range s {
		clear(entry)
	}
}

// Take returns the environment in two parts: what commands may inherit, and the
// variables that denied names. It takes the latter out of the original: out of
// the variables of this process, and out of the memory that /proc/PID/environ
// shows. It is called before anything else runs, and once. The copies are
// returned with an error, too.
//
// Those named as harmless are denied and no secret: they are in neither part, and
// remain variables of this process.
func Take(denied func(name string) bool, harmless ...string) (rest []string, secrets Secrets, err error) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !denied(name) {
			rest = append(rest, entry)
			continue
		}
		if slices.Contains(harmless, name) {
			continue
		}
		secrets = append(secrets, []byte(entry))
		err = errors.Join(err, os.Unsetenv(name))
		// What the runtime copied at its start stays on the heap for good.
		// After Unsetenv nobody looks at it any more.
		clear(unsafe.Slice(unsafe.StringData(entry), len(entry)))
	}
	if len(secrets) > 0 {
		err = errors.Join(err, clearDenied(denied))
	}
	return rest, secrets, err
}

// clearDenied overwrites the entries of denied names in the memory that the
// kernel laid the environment out in: strings with a NUL each, proc_pid_environ(5).
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

// environRegion is where the environment lies: fields 50 and 51 of
// proc_pid_stat(5). Field 2 may contain anything, so the count starts at its
// closing parenthesis.
func environRegion() (start, end int64, err error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 49 {
		return 0, 0, errors.New("/proc/self/stat is too short")
	}
	start, err1 := strconv.ParseInt(fields[47], 10, 64)
	end, err2 := strconv.ParseInt(fields[48], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	// The kernel bounds it too, ARG_MAX in execve(2).
	const limit = 1 << 30
	if start <= 0 || end < start || end-start > limit {
		return 0, 0, fmt.Errorf("environment from %d to %d is out of range", start, end)
	}
	return start, end, nil
}
