package rig

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

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
