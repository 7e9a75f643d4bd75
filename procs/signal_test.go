package procs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func TestSignalGroup(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		// The leader and a child of it answer.
		p, rec := launch(t, Spec{Argv: sh(
			`trap 'wait; echo leader; exit 7' USR1
			(trap 'echo child; exit' USR1; echo up; while :; do sleep 0.01; done) &
			while :; do sleep 0.01; done`), TTY: tty})
		p.Begin()
		waitFor(t, p, "up")
		p.Signal(syscall.SIGUSR1)
		finish(t, p)
		rig.Is(t, exitCode(p), 7, "tty %v: exit code", tty)
		out := rec.text(0)
		rig.Is(t, strings.Contains(out, "child") && strings.Contains(out, "leader"), true, "tty %v: both answer, %q", tty, out)
		p.Signal(syscall.SIGUSR1) // does nothing: nobody is left
	}
}

// TestKillGroup: Terminate leaves the children of an exited leader alone. Signal
// and KillGroup reach them, with a pidfd and without.
func TestKillGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		script string // prints the pid of a child that stays
		pidfd  bool
		signal syscall.Signal
	}{
		{"open pipe", "sleep 60 & echo $!", true, syscall.SIGTERM},
		{"closed", "sleep 60 >/dev/null 2>&1 & echo $!", true, syscall.SIGKILL},
		{"open pipe, old kernel", "sleep 60 & echo $!", false, syscall.SIGTERM},
		{"closed, old kernel", "sleep 60 >/dev/null 2>&1 & echo $!", false, syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, rec := begin(t, Spec{Argv: sh(tt.script)})
			awaitExit(t, p)
			p.group.mu.Lock()
			if !tt.pidfd {
				p.group.closePidfdLocked()
			}
			err := p.group.signalPidfdLocked(0)
			p.group.mu.Unlock()
			switch {
			case tt.pidfd && err == errNoGroupSignal:
				t.Skip("no PIDFD_SIGNAL_PROCESS_GROUP before Linux 6.9")
			case tt.pidfd && err != nil:
				t.Errorf("probing the group of a reaped leader: %v", err)
			}
			child := rig.Value(strconv.Atoi(strings.TrimSpace(rec.text(Stdout))))
			pidfd := rig.Value(unix.PidfdOpen(child, 0))
			defer unix.Close(pidfd)
			rig.Is(t, p.Terminate(), false, "Terminate after the exit: running")
			rig.Is(t, endsWithin(t, pidfd, 20), false, "the child of an exited leader was killed by Terminate")
			p.Signal(tt.signal)
			rig.Is(t, endsWithin(t, pidfd, waitMs), true, "the child has ended")
			finish(t, p)
			p.KillGroup()
		})
	}
}

// waitMs is patience in milliseconds.
const waitMs = int(patience / time.Millisecond)

// endsWithin reports whether the process of pidfd ends within so many
// milliseconds.
func endsWithin(t *testing.T, pidfd, ms int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, ms)
		switch err {
		case nil:
			return n == 1
		case unix.EINTR: // a signal of the Go runtime
		default:
			t.Fatal(err)
		}
	}
}

// TestReusedNumberIsSpared: if the number of a reaped leader names a process again,
// the group of that process is not killed.
func TestReusedNumberIsSpared(t *testing.T) {
	t.Parallel()
	p, _ := launch(t, Spec{Argv: []string{"sleep", "60"}})
	stranger := &group{pid: p.PID(), reaped: true} // "reaped", no pidfd
	stranger.kill()
	rig.Is(t, p.Terminate(), true, "it was running, and not killed as the rest of a dead leader's group")
}

// TestZombiesHoldNothing: the zombies of a group do not keep its pidfd open. It is
// closed at once where all members were killed, else when the zombies are reaped.
func TestZombiesHoldNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"terminate", "signal"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			output(t, self("zombies", how))
		})
	}
}

// endWithZombies ends processes whose children stay zombies: the kernel hands
// these to this process, which does not reap them at first.
func endWithZombies(t rig.T, how string) {
	const processes = 20
	rig.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	guard := testGuard()
	defer guard.Close()
	pidfds := func() (n int) {
		for _, fd := range openFiles() {
			if strings.Contains(fd, "pidfd") {
				n++
			}
		}
		return n
	}
	var children []int
	var kept bool // whether pidfds of groups with members are kept: not before Linux 6.9
	for range processes {
		p, err := Start(Spec{Argv: sh("sleep 600 & echo $!; wait"), Dir: "/", Guard: guard})
		rig.Must(t, err)
		defer p.Close()
		p.Begin()
		rig.Must(t, p.Wait(t.Context(), 0))
		child := rig.Value(strconv.Atoi(strings.TrimSpace(string(p.Read(0, nil).Chunks[0].Data))))
		children = append(children, child)
		p.group.mu.Lock()
		kept = p.group.signalPidfdLocked(0) == nil
		p.group.mu.Unlock()
		if how == "terminate" {
			p.Terminate()
		} else {
			p.Signal(syscall.SIGTERM)
		}
		<-p.Done()
	}
	if how == "signal" {
		if n := pidfds(); kept && n < processes {
			t.Fatalf("%d pidfds are held for %d groups, which consist of zombies", n, processes)
		}
		for _, pid := range children {
			rig.Must(t, rig.Err(syscall.Wait4(pid, nil, 0, nil)))
		}
	}
	rig.Until(t, "no pidfd is held but that of the guard", func() bool { return pidfds() <= 1 })
}

// openFiles returns what the descriptors of this process are.
func openFiles() (files []string) {
	links, _ := filepath.Glob("/proc/self/fd/*") // the pattern is right
	for _, link := range links {
		if file, err := os.Readlink(link); err == nil {
			files = append(files, file)
		}
	}
	return files
}
