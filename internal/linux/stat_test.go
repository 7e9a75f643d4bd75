package linux

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStatOf: the fields of a program whose name looks like the rest of the line.
func TestStatOf(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "a) R 1 2 3")
	if err := os.Symlink("/bin/cat", name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Start returns before the kernel has made the new environment. Who answers has it.
	if _, err := fmt.Fprintln(input, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(output, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if pids, err := PIDs(); err != nil || !slices.Contains(pids, pid) {
		t.Error("the list does not have it")
	}
	s, err := StatOf(pid)
	if err != nil || s.Dead() || s.Number(StatParent) != os.Getpid() || s.Number(StatGroup) != pid || s.Number(StatSession) != pid ||
		s.Number(StatTerminal) != 0 || s.Number(StatStart) == 0 || s.Number(StatEnvironStart) >= s.Number(StatEnvironEnd) || s.Number(1000) != 0 {
		t.Errorf("%q, %v", s, err)
	}
	input.Close()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if s, err = StatOf(pid); err != nil || !s.Dead() {
		t.Errorf("of a zombie: %q, %v", s, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if s, err = StatOf(1 << 30); err == nil {
		t.Errorf("of no process: %q", s)
	}
	if self, err := ReadStat("/proc/self"); err != nil || self.Number(StatGroup) != syscall.Getpgrp() {
		t.Errorf("of this process: %q, %v", self, err)
	}
}
