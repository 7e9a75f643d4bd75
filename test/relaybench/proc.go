package main

import (
	"fmt"
	"os"

	"github.com/execagent/execagent/test/rig"
)

// memory is a member of proc_pid_status(5) in KiB, 0 of a process that is gone.
func memory(pid int, member string) float64 {
	kib, _ := rig.Memory(pid, member)
	return float64(kib)
}

// forgetPeak makes VmHWM start anew, proc_pid_clear_refs(5).
func forgetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}
