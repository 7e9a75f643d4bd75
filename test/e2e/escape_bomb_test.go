package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

const (
	// bombLimit is what --max-processes allows, threads of init included.
	bombLimit = 64
	// bombFuse is a second limit, larger, that protects the machine should the first one fail.
	bombFuse = 1000
)

// TestEscapeBomb makes attempt 59: a fork bomb stays within --max-processes, and the agent goes
// on. The kernel exempts root from that limit, so for root a control group sets it.
func TestEscapeBomb(t *testing.T) {
	sites := machineSites()
	tryBomb(t, sites[len(sites)-1])
}

// TestEscapeBombContainer is the same in hardened containers, where the bomb shares its PID
// namespace with the agent.
func TestEscapeBombContainer(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	for _, site := range containerSites(t, kindsNamed(t, "hardened", "docker hardened")) {
		t.Run(site.name, func(t *testing.T) { tryBomb(t, site) })
	}
}

func tryBomb(t *testing.T, site escapeSite) {
	if site.uid == 0 {
		t.Skip("root may have as many processes as it likes")
	}
	limit := bombLimit
	if site.is("supervised", "ro") {
		// In a user namespace of its own the kernel counts a command's processes alone, here all
		// that its user has, with their threads.
		limit += bombLimit + tasksOf(t, site.uid)
	}
	site.flags = []string{"--max-processes", fmt.Sprint(limit)}
	if site.containers == nil { // the engine has a fuse of its own
		site.through = []string{"prlimit", fmt.Sprintf("--nproc=%d:%d", bombFuse, bombFuse)}
	}
	r := newEscapeRig(t, site)
	mark := "bomb-" + r.secret
	// A process that cannot fork ends; its children stay. The first one ends the whole sandbox, so it
	// forks only while it is alone.
	p := r.startShell(t, "ro", mark, "f() { sleep 300 & f & f & wait; }; f & wait")
	t.Cleanup(func() { // it has ended, unless the test failed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_ = p.Terminate(ctx)
	})
	late := rig.Context(t)
	var said []byte
	for ev, err := range p.Events(late) {
		if err != nil {
			t.Fatalf("it does not come to its limit: %v\n%s", err, said)
		}
		if said = append(said, ev.Data...); bytes.Contains(said, []byte("fork")) {
			break
		}
	}
	p.Discard()
	for range 10 {
		rig.Must(t, rig.Err(r.client.Status(late)))
		if n := len(marked(mark)); n > limit {
			t.Errorf("%d processes, more than %d", n, limit)
		}
	}
	if n := len(marked(mark)); n < bombLimit/4 {
		t.Errorf("only %d processes: that was no bomb", n)
	}
	rig.Must(t, p.Terminate(rig.Context(t)))
	noneLeft(t, mark)
	rig.Is(t, outcome(t, r.startShell(t, "ro", mark, "echo fine")), result{"fine\n", "", 0}, "the next command")
}

// tasksOf counts the threads of a user.
func tasksOf(t *testing.T, uid int) (n int) {
	t.Helper()
	tasks := rig.Value(filepath.Glob("/proc/[0-9]*/task/[0-9]*"))
	for _, task := range tasks {
		if info, err := os.Stat(task); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == uid {
			n++
		}
	}
	return n
}

// TestLimitedWithListener: a command with limits ends where its filter leaves calls to init. Init
// drops its capabilities by a signal to each of its threads, and those that do calls take none.
func TestLimitedWithListener(t *testing.T) {
	t.Parallel()
	for _, site := range machineSites() {
		t.Run(site.name, func(t *testing.T) {
			site.flags = []string{"--max-cpu-seconds", "3600"}
			r := newEscapeRig(t, site)
			rig.Is(t, outcome(t, r.startShell(t, "net", r.secret, "echo fine")), result{"fine\n", "", 0}, "the command")
		})
	}
}

// startShell runs a script under the policy of a mode. The mark is in the environment of all its
// descendants.
func (r *escapeRig) startShell(t *testing.T, mode, mark, script string) *client.Process {
	t.Helper()
	p, err := r.client.Start(rig.Context(t), protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", script}, Cwd: protocol.NewPathURI("/"),
		Env: map[string]string{"PATH": "/usr/bin:/bin", "E2E_MARK": mark}, Sandbox: r.policy(mode),
	})
	rig.Must(t, err)
	return p
}
