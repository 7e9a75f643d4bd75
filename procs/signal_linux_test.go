package procs

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSignalGroup(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		// Both the leader and a child of it answer.
		p, rec := launch(t, Spec{Argv: sh(
			`trap 'wait; echo leader; exit 7' USR1
			(trap 'echo child; exit' USR1; echo up; while :; do sleep 0.01; done) &
			while :; do sleep 0.01; done`), TTY: tty})
		p.Begin()
		waitFor(t, p, "up")
		p.Signal(syscall.SIGUSR1)
		finish(t, p)
		_, code, _, _ := p.State()
		if out := rec.text(0); code != 7 || !strings.Contains(out, "child") || !strings.Contains(out, "leader") {
			t.Errorf("tty %v: exit code %d, output %q", tty, code, out)
		}
		p.Signal(syscall.SIGUSR1) // nobody: nothing
	}
}

// Signal and Terminate leave the children of an exited leader alone, KillGroup
// gets them, with a pidfd and without.
func TestKillGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		script string // prints the pid of a child that stays
		pidfd  bool
	}{
		{"open pipe", "sleep 60 & echo $!", true},
		{"closed", "sleep 60 >/dev/null 2>&1 & echo $!", true},
		{"open pipe, old kernel", "sleep 60 & echo $!", false},
		{"closed, old kernel", "sleep 60 >/dev/null 2>&1 & echo $!", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, rec := launch(t, Spec{Argv: sh(tt.script)})
			p.Begin()
			for after := uint64(0); ; after++ {
				if err := p.Wait(t.Context(), after); err != nil {
					t.Fatal(err)
				}
				if exited, _, _, _ := p.State(); exited {
					break
				}
			}
			p.group.mu.Lock()
			if !tt.pidfd {
				p.group.closePidfd()
			}
			err := p.group.signalPidfd(0)
			p.group.mu.Unlock()
			switch {
			case tt.pidfd && err == errNoGroupSignal:
				t.Skip("no PIDFD_SIGNAL_PROCESS_GROUP before Linux 6.9")
			case tt.pidfd && err != nil:
				t.Errorf("probing the group of a reaped leader: %v", err)
			}
			child, err := strconv.Atoi(strings.TrimSpace(rec.text(Stdout)))
			if err != nil {
				t.Fatal(err)
			}
			pidfd, err := unix.PidfdOpen(child, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pidfd)
			p.Signal(syscall.SIGKILL)
			if p.Terminate() {
				t.Error("Terminate: running after the exit")
			}
			if endsWithin(t, pidfd, 20) {
				t.Fatal("the child of an exited leader was killed by Signal or Terminate")
			}
			p.KillGroup()
			if !endsWithin(t, pidfd, 10_000) {
				t.Fatal("the child survived KillGroup")
			}
			finish(t, p)
			p.KillGroup()
		})
	}
}

// endsWithin tells whether the process of pidfd ends in so many milliseconds.
func endsWithin(t *testing.T, pidfd, ms int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, ms)
		switch err {
		case nil:
			return n == 1
		case unix.EINTR: // the runtime's own signals
		default:
			t.Fatal(err)
		}
	}
}

// A number that names a process again does not name the old group.
func TestReusedNumberIsSpared(t *testing.T) {
	t.Parallel()
	p, _ := launch(t, Spec{Argv: []string{"sleep", "60"}})
	stranger := &group{pid: p.PID(), reaped: true} // "reaped", no pidfd
	stranger.kill()
	if !p.Terminate() {
		t.Error("a living leader was killed as the rest of a dead one's group")
	}
}
