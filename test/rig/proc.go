package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// CPU returns the CPU time that a process itself has used, without its children. It returns 0 for a
// process that has ended.
func CPU(pid int) time.Duration {
	stat, _ := linux.StatOf(pid)
	return time.Duration(stat.Number(linux.StatUserTime)+stat.Number(linux.StatSystemTime)) * 10 * time.Millisecond
}

// Memory returns a member of proc_pid_status(5), such as VmRSS, in KiB. ok is false if there is no
// such member, as for a process that has ended.
func Memory(pid int, member string) (kib int, ok bool) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, member+":"); found {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			return kib, err == nil
		}
	}
	return 0, false
}

// Goroutines returns how many goroutines there are. [runtime.NumGoroutine] may return more while
// garbage is collected: it then counts dead goroutines whose stacks the collector frees.
func Goroutines() int {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return 1 + bytes.Count(buf[:n], []byte("\n\ngoroutine "))
		}
	}
}

// Children returns the children of a process, dead ones too (proc_tid_children(5)).
func Children(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for number := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(number); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// file identifies an open file or socket.
type file struct{ dev, ino uint64 }

// fileOf returns the file of a value that has one, such as an *os.File or a connection.
func fileOf(v any) (f file, ok bool) {
	has, ok := v.(syscall.Conn)
	if !ok {
		return f, false
	}
	raw, err := has.SyscallConn()
	if err != nil {
		return f, false
	}
	var st unix.Stat_t
	err = raw.Control(func(fd uintptr) { ok = unix.Fstat(int(fd), &st) == nil })
	return file{st.Dev, st.Ino}, ok && err == nil
}

// childrenHave reports whether a child of this process has one of these files open.
func childrenHave(files []file) bool {
	for _, pid := range Children(os.Getpid()) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			var st unix.Stat_t
			if unix.Stat(fd, &st) == nil && slices.Contains(files, file{st.Dev, st.Ino}) {
				return true
			}
		}
	}
	return false
}
