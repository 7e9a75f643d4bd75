package procs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/test/rig"
)

// startJobs does what a shell with job control does: it starts a job that leads
// a group of its own and holds no pipe, and a process with a session of its
// own, and prints their pids. With "stay" it waits for them. Both start at least a
// tick later than the process that runs startJobs.
func startJobs(mode string) error {
	for self, _ := linux.StatOf(os.Getpid()); ticks() == uint64(self.Number(linux.StatStart)); {
		time.Sleep(time.Millisecond)
	}
	job := exec.Command("sleep", "60")
	job.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	escaped := exec.Command("sleep", "61")
	escaped.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := job.Start(); err != nil {
		return err
	}
	if err := escaped.Start(); err != nil {
		return err
	}
	fmt.Println(job.Process.Pid, escaped.Process.Pid)
	if mode == "exit" {
		return nil
	}
	return job.Wait()
}

// openJobs returns the pidfds of the two processes whose pids startJobs printed.
// Both are killed at the end of the test.
func openJobs(t *testing.T, line string) (job, escaped int) {
	t.Helper()
	var pids [2]int
	rig.Must(t, rig.Err(fmt.Sscan(line, &pids[0], &pids[1])))
	var fds [2]int
	for i, pid := range pids {
		fd := rig.Value(unix.PidfdOpen(pid, 0))
		t.Cleanup(func() {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			_ = unix.Close(fd)
		})
		fds[i] = fd
	}
	return fds[0], fds[1]
}

// jobsOf lets a process that runs startJobs begin, and opens its jobs.
func jobsOf(t *testing.T, p *Process, rec *recorder) (job, escaped int) {
	t.Helper()
	p.Begin()
	rig.Until(t, "the pids are printed", func() bool { return strings.Contains(rec.text(Stdout), "\n") })
	return openJobs(t, rec.text(Stdout))
}

func TestKillSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mode string
		kill       func(*Process)
	}{
		{"Terminate", "stay", func(p *Process) { p.Terminate() }},
		{"KillGroup", "stay", (*Process).KillGroup},
		{"Close", "stay", func(p *Process) { p.Close() }},
		{"KillGroup after the end", "exit", (*Process).KillGroup},
		{"Close after the end", "exit", func(p *Process) { p.Close() }},
		{"twice after the end", "exit", func(p *Process) { KillGroups(p, p) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			guard := testGuard()
			defer guard.Close()
			p, rec := launch(t, Spec{Argv: []string{selfPath, "jobs", tt.mode}, Guard: guard})
			job, escaped := jobsOf(t, p, rec)
			if tt.mode == "exit" {
				finish(t, p)
				rig.Is(t, p.Terminate() || endsWithin(t, job, 20), false, "Terminate of an ended process killed its job")
				p.group.mu.Lock()
				if p.group.gone || p.group.pidfd != nil && p.group.empty {
					t.Errorf("gone %v, empty %v, pidfd %v", p.group.gone, p.group.empty, p.group.pidfd)
				}
				p.group.mu.Unlock()
				rig.Is(t, p.slot == 0, false, "the guard does not know of the job any more")
			}
			tt.kill(p)
			rig.Is(t, endsWithin(t, job, waitMs), true, "the job has ended")
			rig.Is(t, endsWithin(t, escaped, 0), false, "a process in a session of its own was killed")
			_, left := p.group.claim()
			rig.Is(t, left, false, "the session would be looked for again")
		})
	}
}

// TestStrangersSessionIsSpared: a process is spared if it was born when the number
// of the session may have named another one already, unless an older process in the
// session proves that it does not.
func TestStrangersSessionIsSpared(t *testing.T) {
	t.Parallel()
	p, rec := launch(t, Spec{Argv: []string{selfPath, "jobs", "stay"}})
	job, _ := jobsOf(t, p, rec)
	stat := rig.Value(linux.StatOf(p.PID()))
	born := uint64(stat.Number(linux.StatStart))
	killSessions(map[int]uint64{p.PID(): born - 1})
	rig.Is(t, endsWithin(t, job, 20), false, "a member of a session was killed that is younger than our claim to its number")
	killSessions(map[int]uint64{p.PID(): born})
	rig.Is(t, endsWithin(t, job, waitMs), true, "the member of a session has ended whose leader has never changed")
}

// TestKillForkingSession: descendants that keep forking are all found.
func TestKillForkingSession(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	p, _ := launch(t, Spec{Argv: []string{bash, "-c",
		"set -m; for i in 1 2 3 4; do (while :; do sleep 60 & sleep 0.001; done) & done >/dev/null 2>&1; echo up; wait"}})
	p.Begin()
	waitFor(t, p, "up")
	p.KillGroup()
	finish(t, p)
	for _, pid := range rig.Value(linux.PIDs()) {
		if s, err := linux.StatOf(pid); err == nil && s.Number(linux.StatSession) == p.PID() && !s.Dead() {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // the process has just ended
			}
			rig.Is(t, endsWithin(t, fd, waitMs), true, "process %d of the session has ended", pid)
			_ = unix.Close(fd)
		}
	}
}

func TestTicks(t *testing.T) {
	t.Parallel()
	before := ticks()
	p, _ := begin(t, Spec{Argv: []string{"/bin/sleep", "60"}})
	stat, err := linux.StatOf(p.PID())
	if start := uint64(stat.Number(linux.StatStart)); err != nil || start < before || start > ticks() {
		t.Errorf("a process has started at %d, %v, want between %d and now", start, err, before)
	}
}

func BenchmarkKillSession(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		killSessions(map[int]uint64{1 << 30: 1})
	}
	b.ReportMetric(float64(len(rig.Value(linux.PIDs()))), "processes")
}
