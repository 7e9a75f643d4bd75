package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/execagent/execagent/procs"
)

// takeEnviron returns a copy of the environment, apart the agent's keys and
// tokens, and takes those out of the original: out of this process's variables,
// and out of the memory that /proc/PID/environ shows to every process of the
// same user. The copies are returned with an error too. Keys are bytes,
// so that who does not need them can clear them: a client may read the memory
// of the agent that it uses.
func takeEnviron() (environ []string, keys [][]byte, err error) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !procs.Denied(name) {
			environ = append(environ, entry)
			continue
		}
		if name == exitOnStdinClose {
			continue // no key, and the parser of the command line has yet to read it
		}
		keys = append(keys, []byte(entry))
		err = errors.Join(err, os.Unsetenv(name))
		// What the runtime copied at its start stays on the heap for good.
		// After Unsetenv nobody looks at it any more.
		clear(unsafe.Slice(unsafe.StringData(entry), len(entry)))
	}
	if len(keys) > 0 {
		err = errors.Join(err, clearDenied())
	}
	return environ, keys, err
}

// clearDenied overwrites the entries of denied names in the memory that the
// kernel laid the environment out in: strings with a NUL each, proc_pid_environ(5).
func clearDenied() error {
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
		if name, _, _ := bytes.Cut(entry, []byte("=")); procs.Denied(string(name)) {
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
