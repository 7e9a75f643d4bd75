package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// byDirect is what a harness says who asks for the direct transport.
var byDirect = []string{"--transport", "direct"}

// TestDirect: commands of several harnesses run at once on an executor that is reached by the
// direct transport.
func TestDirect(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t, "--direct", "ci-*")
	executor := s.Serve(t, "ci-1", "--transport", "direct")

	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent) // it has no error
	cats := make([]*exec.Cmd, 3)
	inputs := make([]*os.File, len(cats))
	outputs := make([]bytes.Buffer, len(cats))
	for i := range cats {
		cats[i] = s.ExecWith(t, "ci-1", byDirect, "cat")
		r, w, err := os.Pipe()
		rig.Must(t, err)
		inputs[i], cats[i].Stdin, cats[i].Stdout = w, r, &outputs[i]
		rig.Must(t, cats[i].Start())
		r.Close()
	}
	executor.Says(t, "session attached", len(cats)) // all of them at once
	for i, w := range inputs {
		rig.Check(t, rig.Err(w.Write(sent)))
		w.Close()
		rig.Check(t, cats[i].Wait())
		rig.Is(t, bytes.Equal(outputs[i].Bytes(), sent), true, "%d of %d bytes, and the same, come back", outputs[i].Len(), len(sent))
	}
	has(t, s.Ask(t, "environments"), "ci-1")
	lacks(t, executor.Printed.String(), "signature=") // of a URL
	executor.Terminate(t)
}

// TestDirectIsAskedFor: nobody gets the direct transport without asking for it, and nobody who
// asks for it gets the other one.
func TestDirectIsAskedFor(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t, "--direct", "ci-direct*")
	s.Serve(t, "ci-direct", "--transport", "direct")
	s.Serve(t, "ci-direct-noise")
	s.Serve(t, "ci-noise")
	fails := func(environment string, flags []string, want string) {
		t.Helper()
		has(t, says(t, s.ExecWith(t, environment, append(flags, "--wait", "0"), "true")), want, "exit 125\n")
	}
	fails("ci-direct", nil, "not encrypted from end to end")
	fails("ci-direct", []string{"--transport", "noise"}, "not encrypted from end to end")
	fails("ci-direct-noise", byDirect, "does not offer the direct transport")
	fails("ci-noise", byDirect, "does not offer the direct transport")
	// The variable of the executor's flag is not that of the harness's.
	cmd := s.Exec(t, "ci-noise", "true")
	cmd.Env = append(cmd.Env, "AGENT_TRANSPORT=direct")
	rig.Check(t, cmd.Run())
	p := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil,
		"--remote", s.URL(), "--environment-id", "ci-other", "--transport", "direct")
	rig.Is(t, p.Exit(t), 1, "exit code")
	p.Says(t, "does not offer the direct transport", 1)
}

// TestDirectCut: a command outlives connections that are cut at either end, and a restart of the
// registry. Nothing of its output is lost or there twice.
func TestDirectCut(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	s := rig.NewSite(t, "--direct", "*")
	atExecutor, atHarness := rig.NewProxy(t, s.Address), rig.NewProxy(t, s.Address)
	// Its URL is that of the proxy, since the registry makes it from the request.
	executor := s.At(atExecutor.Address()).Serve(t, "ci-1", "--transport", "direct")
	cat := connect(t, s.At(atHarness.Address()).ExecWith(t, "ci-1", byDirect, "cat"))
	say := func(text string) {
		t.Helper()
		rig.Must(t, rig.Err(fmt.Fprintln(cat.stdin, text)))
		cat.says(t, text)
	}
	say("before")
	atHarness.Cut()
	say("after the harness was cut")
	atExecutor.Cut()
	say("after the executor was cut")
	s.Registry.Terminate(t)
	s.StartRegistry(t)
	say("after the registry was started again")
	_ = cat.stdin.Close()
	rig.Is(t, cat.Exit(t), 0, "exit code")
	executor.Says(t, "resumed=true", 3)
	executor.Terminate(t)
}

// TestDirectSigned: an executor registers by AWS signatures with a key of our registry. Its
// commands see nothing of the credentials, and wrong or revoked ones end it.
func TestDirectSigned(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	s := rig.NewSite(t, "--direct", "*")
	var key struct {
		ID     string `json:"access_key_id"`
		Secret string `json:"secret_access_key"`
		Text   string `json:"key"`
	}
	text := s.Ask(t, "keys", "create", "--role", "executor", "--environment", "ci-*", "--aws", "-o", "json")
	if err := json.Unmarshal([]byte(text), &key); err != nil || key.ID == "" || key.Secret == "" || key.Text != "" {
		t.Fatalf("%v: %s", err, text)
	}
	start := func(environment, secret string, more ...string) *rig.Program {
		t.Helper()
		environ := append([]string{
			"AWS_ACCESS_KEY_ID=" + key.ID, "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_REGION=eu-west-1", "AWS_EC2_METADATA_DISABLED=true",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN=hidden", "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:1/hidden",
		}, more...)
		return s.Start(t, rig.Agent(t), environ, nil, "--remote", s.URL(), "--environment-id", environment, "--aws-sigv4", "--remote-transport", "direct")
	}
	executor := start("ci-1", key.Secret)
	executor.Says(t, "connected to the rendezvous", 1)
	out, err := s.ExecWith(t, "ci-1", byDirect, "sh", "-c", `env; tr '\0' '\n' </proc/$PPID/environ`).Output()
	rig.Must(t, err)
	environ := textOf(os.ReadFile(filepath.Join("/proc", fmt.Sprint(executor.Process.Pid), "environ")))
	for _, where := range []string{string(out), environ, executor.Printed.String()} {
		lacks(t, where, key.Secret, "hidden", "Signature=")
	}

	wrong := start("ci-2", key.Secret+"x")
	rig.Is(t, wrong.Exit(t), 1, "exit code with a wrong secret")
	wrong.Says(t, "registry answered 401", 1)
	s.Ask(t, "keys", "revoke", key.ID)
	rig.Is(t, executor.Exit(t), 1, "exit code with a revoked key")
}
