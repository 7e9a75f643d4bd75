package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/execagent/execagent/procs"
)

// takeEnviron returns a copy of the environment and takes the agent's keys and
// tokens out of the original: out of this process's variables, and out of the
// memory that /proc/PID/environ shows to every process of the same user (D11).
// The copy is returned with an error too.
func takeEnviron() ([]string, error) {
	environ := os.Environ()
	denied := false
	for i, entry := range environ {
		// The strings of the runtime lie in that very memory.
		environ[i] = strings.Clone(entry)
		if name, _, _ := strings.Cut(entry, "="); procs.Denied(name) {
			denied = true
			if err := os.Unsetenv(strings.Clone(name)); err != nil {
				return environ, err
			}
		}
	}
	if !denied {
		return environ, nil
	}
	return environ, clearDenied()
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
