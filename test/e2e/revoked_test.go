package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/test/rig"
)

// TestRemoteRevoked: when the key of a harness is revoked, its commands end, and those of other
// harnesses go on, by either transport. With --keep-revoked-sessions an agent keeps the commands as long as those of
// any client that is gone.
func TestRemoteRevoked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ args, flags []string }{
		"killed": {}, "kept": {args: []string{"--keep-revoked-sessions"}}, "direct": {byDirect, byDirect},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "killed" {
				rig.Tier(t, rig.Merge)
			}
			t.Parallel()
			s := rig.NewSite(t, "--direct", "*")
			// With this TTL only the revocation can end a session during the test.
			executor := s.Serve(t, "ci-1", append([]string{"--session-ttl", "1h", "--log-level", "debug"}, tt.args...)...)
			other := connect(t, s.ExecWith(t, "ci-1", tt.flags, "cat"))
			key, id := s.CreateKey(t, "harness")
			mark := fmt.Sprintf("revoked-%s-%d", name, os.Getpid())
			doomed := s.ExecWith(t, "ci-1", append([]string{"-e", "E2E_MARK=" + mark}, tt.flags...), "sh", "-c", "sleep 600 & echo ready; wait")
			doomed.Env = append(doomed.Env, "AGENT_REGISTRY_TOKEN="+key)
			printed := &rig.Transcript{}
			doomed.Stdout = printed
			rig.Must(t, doomed.Start())
			executor.Until(t, "the command runs", func() bool { return printed.String() == "ready\n" && len(marked(mark)) == 2 })
			// Both logs together say whose the session is.
			whose := regexp.MustCompile(`harness connected.*` + id + `.* pseudonym=(\S+)`).FindStringSubmatch(s.Registry.Printed.String())
			if whose == nil {
				t.Fatalf("the registry does not say whose pseudonym it is:\n%s", s.Registry.Printed)
			}
			executor.Says(t, "principal=key:"+whose[1], 1)

			s.Ask(t, "keys", "revoke", id)
			revoked := time.Now()
			_ = doomed.Wait() // the state says how
			rig.Is(t, doomed.ProcessState.ExitCode(), 125, "exit code")
			executor.Says(t, "the harness's key was revoked", 1)
			executor.Says(t, `msg="session detached"`, 1) // and its session is ended then, or never
			if name != "kept" {
				noneLeft(t, mark)
				t.Logf("killed after %v", time.Since(revoked))
			}

			rig.Check(t, rig.Err(io.WriteString(other.stdin, "still here\n")))
			other.says(t, "still here")
			_ = other.stdin.Close()
			rig.Is(t, other.Exit(t), 0, "exit code of the other command")
			if found := marked(mark); name == "kept" && len(found) != 2 {
				t.Errorf("%v run, want two", found)
			}
			executor.Terminate(t)
			noneLeft(t, mark) // what the agent has killed may need a while to end
		})
	}
}

// TestRemoteRevokedLeft: what a harness has left running in a session with a name ends when
// its key is revoked: at once, or, if that happens while the registry is away, when the
// executor is back.
func TestRemoteRevokedLeft(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", away), func(t *testing.T) {
			t.Parallel()
			// By these each command is found among all of this machine.
			bad, good := fmt.Sprint("6001.", os.Getpid()), fmt.Sprint("6002.", os.Getpid())
			if away {
				bad, good = fmt.Sprint("7001.", os.Getpid()), fmt.Sprint("7002.", os.Getpid())
			}
			s := rig.NewSite(t)
			executor := s.Serve(t, "ci-1", "--session-ttl", "1h", "--log-level", "debug")
			key, id := s.CreateKey(t, "harness")
			left := s.ExecWith(t, "ci-1", []string{"-d", "--name", "left"}, "sleep", bad)
			left.Env = append(left.Env, "AGENT_REGISTRY_TOKEN="+key)
			rig.Must(t, left.Run())
			rig.Must(t, s.ExecWith(t, "ci-1", []string{"-d", "--name", "another"}, "sleep", good).Run())
			running := func(seconds string) string {
				return s.Run(t, "ci-1", "sh", "-c", "pgrep -f '^sleep "+seconds+"$' || true")
			}
			if running(bad) == "" || running(good) == "" {
				t.Fatal("what was started does not run")
			}
			if away {
				s.Registry.Kill(t)
			}
			s.Ask(t, "keys", "revoke", id)
			if away {
				s.StartRegistry(t)
			}
			executor.Says(t, "reason=revoked", 1)
			executor.Until(t, "what was left is killed", func() bool { return running(bad) == "" })
			rig.Is(t, running(good) != "", true, "what another key has left runs on")
		})
	}
}

// TestAgentReplaced: who hears that the agent of an environment was replaced asks the registry, and
// has a client of the new one if that is so.
func TestAgentReplaced(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	first := s.Serve(t, "ci-0")
	connect := func(to environment.Transport) (client.Config, error) {
		noise := to.(environment.Noise)
		return remote.Registry(noise.RegistryURL, noise.EnvironmentID, noise.AuthToken)
	}
	set, err := environment.New(environment.Config{Connect: connect}, environment.Plan{Default: "box", Entries: []environment.Entry{{
		ID: "box", Transport: environment.Noise{RegistryURL: s.URL(), EnvironmentID: "ci-0", AuthToken: s.Harness},
	}}})
	rig.Must(t, err)
	defer set.Close()
	box, _ := set.Get("box")
	old, err := box.Client(rig.Context(t))
	rig.Must(t, err)
	rig.Must(t, box.Refresh(rig.Context(t)))
	if c, err := box.Client(rig.Context(t)); c != old || err != nil {
		t.Fatalf("the client has changed with the same agent: %v", err)
	}
	first.Terminate(t)
	s.Serve(t, "ci-0")
	// The agent is connected before the registry has noted that it is online.
	rig.Until(t, "the agent is online", func() bool { return box.Refresh(rig.Context(t)) == nil })
	if !errors.Is(old.Err(), client.ErrReplaced) && !errors.Is(old.Err(), api.ErrExecutorChanged) { // whoever heard it first
		t.Errorf("the old client ends with %v", old.Err())
	}
	c, err := box.Client(rig.Context(t))
	rig.Must(t, err)
	rig.Is(t, answer(t, c, "", "echo", "new"), "new\n", "the new agent")
}
