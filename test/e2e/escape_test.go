package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
)

// TestEscape makes the attempts of sandbox.md 17, and more, from inside a sandbox, as root and as
// an ordinary user. testdata/escape/ends says how each must end. Whatever it ends with, nothing
// outside may have changed.
func TestEscape(t *testing.T) {
	tryEscapes(t, machineSites())
}

// TestEscapeContainer is the same in containers of every kind.
func TestEscapeContainer(t *testing.T) {
	tryEscapes(t, containerSites(t, triedKinds(t)))
}

func tryEscapes(t *testing.T, sites []escapeSite) {
	for i, site := range sites {
		enforced, refused := site.modes()
		for j, mode := range enforced {
			if !inTurn(i+j, len(sites)) {
				continue
			}
			t.Run(site.name+"/"+mode, func(t *testing.T) {
				r := newEscapeRig(t, site)
				before := r.protected(t, mode)
				left := outcome(t, r.start(t, mode))
				if left.code != 0 {
					t.Fatalf("%+v", left)
				}
				judge(t, site, mode, left.stdout)
				rig.Same(t, "what is protected", before, r.protected(t, mode))
				rig.Is(t, rig.Err(r.client.Status(rig.Context(t))), nil, "the agent")
				r.outside.unreached(t)
			})
		}
		for _, mode := range refused {
			t.Run(site.name+"/"+mode, func(t *testing.T) {
				r := newEscapeRig(t, site)
				before := r.protected(t, mode)
				left := outcome(t, r.start(t, mode))
				lack := lacking[site.kind.means]
				// A terminal has one stream.
				has(t, ending(left.stdout+left.stderr, left.code), "sandbox: ", lack.first+" is missing: ", lack.remedy, "exit 101\n")
				lacks(t, left.stdout+left.stderr, `"errno"`)
				rig.Same(t, "what is protected", before, r.protected(t, mode))
			})
		}
	}
}

// inTurn reports whether a push makes one of several attempts that are alike: each one of that many.
func inTurn(attempt, of int) bool { return attempt%of == 0 || rig.Runs(rig.Merge) }

// attempts is how the attempts have ended that the program escape tells of: "ok", or the name of an
// error.
func attempts(t *testing.T, told string) map[string]string {
	t.Helper()
	ends := map[string]string{}
	for line := range strings.Lines(told) {
		var got struct {
			N, Errno string
			OK       bool
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if ends[got.N] = got.Errno; got.OK {
			ends[got.N] = "ok"
		}
	}
	return ends
}

// judge compares how the attempts ended with how they must end.
func judge(t *testing.T, site escapeSite, mode, told string) {
	t.Helper()
	ended := attempts(t, told)
	for n, end := range ended {
		if allowed := strings.Fields(site.expected(n, mode)); escapes[n] == "" || !slices.Contains(allowed, end) {
			t.Errorf("%s: %s, want one of %v", n, end, allowed)
		}
	}
	for n := range escapes {
		if _, tried := ended[n]; !tried {
			t.Errorf("%s was not tried", n)
		}
	}
}

// TestEscapeDaemon makes attempts 58 and 72: a process that leaves the session and the group of a
// confined process ends with it, and with the agent, however the agent ends. No placeholder stays
// in the workspace either.
func TestEscapeDaemon(t *testing.T) {
	tryDaemons(t, machineSites())
}

// TestEscapeDaemonContainer is the same in a hardened container, where there is no PID namespace
// to end, with namespaces and with a supervisor, and in one without Landlock, where there is.
func TestEscapeDaemonContainer(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	tryDaemons(t, containerSites(t, kindsNamed(t, "hardened", "docker hardened", "masked, without Landlock")))
}

func tryDaemons(t *testing.T, sites []escapeSite) {
	for i, site := range sites {
		for j, mode := range []string{"ro", "ww"} {
			if !inTurn(i+j, len(sites)) {
				continue
			}
			t.Run(site.name+"/terminate/"+mode, func(t *testing.T) {
				r := newEscapeRig(t, site)
				p := r.startDaemon(t, mode)
				rig.Must(t, p.Terminate(rig.Context(t)))
				r.daemonEnds(t)
				rig.Until(t, "no placeholder is left", func() bool { return r.placeholder() == nil })
			})
			t.Run(site.name+"/agent killed/"+mode, func(t *testing.T) {
				r := newEscapeRig(t, site)
				r.startDaemon(t, mode)
				r.killAgent(t)
				r.daemonEnds(t)
				r.startAgent(t)
				if site.containers != nil {
					// The record of the placeholders was in the old container. The next command
					// that needs the same names removes them.
					rig.Is(t, outcome(t, r.start(t, "ww", "privileged")).code, 13, "after the next start: exit code")
				}
				rig.Until(t, "no placeholder is left", func() bool { return r.placeholder() == nil })
			})
		}
	}
}

// startDaemon starts a process that has left others behind.
func (r *escapeRig) startDaemon(t *testing.T, mode string) *client.Process {
	t.Helper()
	p := r.start(t, mode, "daemon", r.daemon())
	for ev, err := range p.Events(rig.Context(t)) {
		rig.Must(t, err)
		if strings.Contains(string(ev.Data), "ready") {
			break
		}
	}
	if n := len(withArgument(r.daemon())); n < 4 {
		t.Fatalf("only %d processes", n)
	}
	// A supervisor needs none.
	if found := r.placeholder(); (found != nil) != (mode == "ww" && !r.site.is("supervised", mode)) {
		t.Fatalf("placeholders in mode %s: %v", mode, found)
	}
	return p
}

// daemon is an argument that all of these processes have, to find them by.
func (r *escapeRig) daemon() string { return "daemon-" + r.secret }

func (r *escapeRig) daemonEnds(t *testing.T) {
	t.Helper()
	rig.Until(t, "all of it has ended", func() bool { return len(withArgument(r.daemon())) == 0 })
}

// placeholder is an error if there is one in the workspace.
func (r *escapeRig) placeholder() error {
	entries, err := os.ReadDir(r.repo)
	for _, e := range entries {
		switch e.Name() {
		case ".git", "vault", "dir", "a", "a.env", "file", "link":
		default:
			err = errors.Join(err, fmt.Errorf("%s is left", e.Name()))
		}
	}
	return err
}

// withArgument are the live processes that were started with an argument.
func withArgument(mark string) []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		panic(err) // /proc is not mounted
	}
	var found []string
	for _, e := range entries {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && bytes.Contains(line, []byte("\x00"+mark+"\x00")) {
			found = append(found, e.Name())
		}
	}
	return found
}
