package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestRemoteRevoked: when the key of a harness is revoked, its commands end, and those of other
// harnesses go on. With --keep-revoked-sessions an agent keeps the commands as long as those of
// any client that is gone.
func TestRemoteRevoked(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"killed": nil, "kept": {"--keep-revoked-sessions"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := rig.NewSite(t)
			// With this TTL only the revocation can end a session during the test.
			executor := s.Serve(t, "ci-1", append([]string{"--session-ttl", "1h", "--log-level", "debug"}, args...)...)
			other := s.Exec(t, "ci-1", "cat")
			stdin, err := other.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			echoed := &rig.Transcript{}
			other.Stdout = echoed
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			key, id := s.CreateKey(t, "harness")
			doomed := s.Exec(t, "ci-1", "sh", "-c", "sleep 600 & echo $$ $!; wait")
			doomed.Env = append(doomed.Env, "AGENT_REGISTRY_TOKEN="+key)
			printed := &rig.Transcript{}
			doomed.Stdout = printed
			if err := doomed.Start(); err != nil {
				t.Fatal(err)
			}
			executor.Until(t, "the command runs", func() bool { return strings.HasSuffix(printed.String(), "\n") })
			running := func() (n int) {
				for pid := range strings.FieldsSeq(printed.String()) {
					stat, err := os.ReadFile("/proc/" + pid + "/stat")
					if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
						n++
					}
				}
				return n
			}
			if running() != 2 {
				t.Fatalf("%d processes run, want 2: %q", running(), printed)
			}

			s.Ask(t, "keys", "revoke", id)
			revoked := time.Now()
			err = doomed.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 125 {
				t.Errorf("%v, want exit code 125", err)
			}
			executor.Says(t, "the harness's key was revoked", 1)
			executor.Says(t, `msg="session detached"`, 1) // and its session is ended then, or never
			if name == "killed" {
				executor.Until(t, "the command is killed", func() bool { return running() == 0 })
				t.Logf("killed after %v", time.Since(revoked))
			}

			if _, err := io.WriteString(stdin, "still here\n"); err != nil {
				t.Error(err)
			}
			executor.Until(t, "the other command answers", func() bool { return echoed.String() == "still here\n" })
			stdin.Close()
			if err := other.Wait(); err != nil {
				t.Error(err)
			}
			if n := running(); name == "kept" && n != 2 {
				t.Errorf("%d processes run, want 2", n)
			}
			executor.Terminate(t)
			if n := running(); n != 0 {
				t.Errorf("%d processes outlive the agent", n)
			}
		})
	}
}

// TestRemoteRevokedLeft: what a harness has left running in a session with a name ends when
// its key is revoked: at once, or, if that happens while the registry is away, when the
// executor is back.
func TestRemoteRevokedLeft(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("away ", away), func(t *testing.T) {
			t.Parallel()
			bad, good := "6001", "6002" // by which each command is found among all of this machine
			if away {
				bad, good = "7001", "7002"
			}
			s := rig.NewSite(t)
			executor := s.Serve(t, "ci-1", "--session-ttl", "1h", "--log-level", "debug")
			key, id := s.CreateKey(t, "harness")
			left := s.ExecWith(t, "ci-1", []string{"-d", "--name", "left"}, "sleep", bad)
			left.Env = append(left.Env, "AGENT_REGISTRY_TOKEN="+key)
			if err := left.Run(); err != nil {
				t.Fatal(err)
			}
			if err := s.ExecWith(t, "ci-1", []string{"-d", "--name", "another"}, "sleep", good).Run(); err != nil {
				t.Fatal(err)
			}
			running := func(seconds string) string {
				return s.Run(t, "ci-1", "sh", "-c", "pgrep -f '^sleep "+seconds+"' || true")
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
			if running(good) == "" {
				t.Error("what another key has left is killed, too")
			}
		})
	}
}
