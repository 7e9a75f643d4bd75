package e2e

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
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

// TestEscapeBombContainer is the same in a hardened container, where the bomb shares its PID
// namespace with the agent.
func TestEscapeBombContainer(t *testing.T) {
	tryBomb(t, containerSites(t, "hardened")[0])
}

func tryBomb(t *testing.T, site escapeSite) {
	if site.uid == 0 {
		t.Skip("root may have as many processes as it likes")
	}
	site.flags = []string{"--max-processes", fmt.Sprint(bombLimit)}
	if site.containers == nil { // the engine has a fuse of its own
		site.through = []string{"prlimit", fmt.Sprintf("--nproc=%d:%d", bombFuse, bombFuse)}
	}
	r := newEscapeRig(t, site)
	mark := "bomb-" + r.secret
	// A process that cannot fork ends; its children stay.
	p := r.startShell(t, mark, "f() { sleep 300 & f & f & wait; }; f")
	t.Cleanup(func() { _ = p.Terminate(context.WithoutCancel(t.Context())) }) // it has ended, unless the test failed
	late, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
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
		if _, err := r.client.Status(late); err != nil {
			t.Fatalf("the agent: %v", err)
		}
		if n := len(marked(mark)); n > bombLimit {
			t.Errorf("%d processes, more than %d", n, bombLimit)
		}
	}
	if n := len(marked(mark)); n < bombLimit/4 {
		t.Errorf("only %d processes: that was no bomb", n)
	}
	if err := p.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	noneLeft(t, mark)
	if code, stdout, stderr := outcome(t, r.startShell(t, mark, "echo fine")); code != 0 || stdout != "fine\n" {
		t.Errorf("the next command: exit code %d, %s%s", code, stdout, stderr)
	}
}

// startShell runs a script under a policy without any writing. The mark is in the environment of
// all its descendants.
func (r *escapeRig) startShell(t *testing.T, mark, script string) *client.Process {
	t.Helper()
	p, err := r.client.Start(t.Context(), protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", script}, Cwd: protocol.NewPathURI("/"),
		Env: map[string]string{"PATH": "/usr/bin:/bin", "E2E_MARK": mark}, Sandbox: r.policy("ro"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
