package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEscape tries the list of sandbox.md 17 and more, from inside, as root and as an ordinary user. What each attempt has to
// end with is in escapes; and nothing outside may have changed, whatever it ended with. The mode tty is ww with a terminal.
func TestEscape(t *testing.T) {
	for _, uid := range escapeUsers(t) {
		for _, mode := range []string{"ro", "ww", "net", "tty"} {
			t.Run(fmt.Sprintf("%s/uid %d", mode, uid), func(t *testing.T) {
				r := newEscapeRig(t, uid)
				before := r.protected(t, mode)
				p := r.start(t, mode)
				var stdout, stderr bytes.Buffer
				code, err := p.CopyOutput(t.Context(), &stdout, &stderr)
				if err != nil || code != 0 {
					t.Fatalf("exit code %d, %v\n%s%s", code, err, &stdout, &stderr)
				}
				judge(t, mode, stdout.Bytes())
				sameState(t, before, r.protected(t, mode))
				if n := r.reached.Load(); n != 0 {
					t.Errorf("sockets outside were reached %d times", n)
				}
				if err := r.agent.Process.Signal(syscall.Signal(0)); err != nil {
					t.Errorf("the agent: %v", err)
				}
				for _, release := range r.release {
					release()
				}
				if r.said.Len() > 0 {
					t.Errorf("a process outside was signalled: %s", r.said)
				}
			})
		}
	}
}

// escapeUsers are those whose agents are tried.
func escapeUsers(t *testing.T) []int {
	t.Helper()
	if os.Geteuid() != 0 {
		return []int{os.Geteuid()}
	}
	return []int{0, nobody}
}

// judge compares what the attempts ended with with what they have to.
func judge(t *testing.T, mode string, lines []byte) {
	t.Helper()
	seen := map[string]bool{}
	for line := range bytes.Lines(lines) {
		var got struct {
			N, Name, Errno string
			OK             bool
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		seen[got.N] = true
		want, known := escapes[got.N]
		if !known {
			t.Errorf("%s %s: it is not said what it has to end with", got.N, got.Name)
			continue
		}
		end := got.Errno
		if got.OK {
			end = "ok"
		}
		if allowed := strings.Fields(want.in(mode)); !slices.Contains(allowed, end) {
			t.Errorf("%s %s: %s, want one of %v", got.N, got.Name, end, allowed)
		}
	}
	for n := range escapes {
		if !seen[n] {
			t.Errorf("%s was not tried", n)
		}
	}
}

// TestEscapeDaemon: who leaves session and group of a confined process ends with it, and with the agent, however that ends
// (58 and 72). No placeholder stays in the workspace either.
func TestEscapeDaemon(t *testing.T) {
	for _, uid := range escapeUsers(t) {
		for _, mode := range []string{"ro", "ww"} {
			for _, how := range []string{"terminate", "agent killed"} {
				t.Run(fmt.Sprintf("%s/%s/uid %d", how, mode, uid), func(t *testing.T) {
					r := newEscapeRig(t, uid)
					mark := "daemon-" + r.secret
					p := r.start(t, mode, "daemon", mark)
					for ev, err := range p.Events(t.Context()) {
						if err != nil {
							t.Fatal(err)
						}
						if strings.Contains(string(ev.Data), "ready") {
							break
						}
					}
					if n := len(withArgument(mark)); n < 4 {
						t.Fatalf("only %d processes", n)
					}
					if how == "terminate" {
						if err := p.Terminate(t.Context()); err != nil {
							t.Fatal(err)
						}
					} else if err := r.agent.Process.Kill(); err != nil {
						t.Fatal(err)
					}
					eventually(t, 10*time.Second, func() error {
						if left := withArgument(mark); len(left) > 0 {
							return fmt.Errorf("left: %v", left)
						}
						return nil
					})
					if how == "terminate" {
						eventually(t, 10*time.Second, func() error { return r.placeholder() })
						return
					}
					r.startAgent(t)
					if err := r.placeholder(); err != nil {
						t.Errorf("after the next start: %v", err)
					}
				})
			}
		}
	}
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
