package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// byDirect is what a harness says who asks for the direct transport.
var byDirect = []string{"--transport", "direct"}

// mustPipes returns the standard input of a command, and its output.
func mustPipes(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	return in, bufio.NewReader(out)
}

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
		if err := cats[i].Wait(); err != nil || !bytes.Equal(outputs[i].Bytes(), sent) {
			t.Errorf("%d of %d bytes come back, or others: %v\n%s", outputs[i].Len(), len(sent), err, s.Log)
		}
	}
	if list := s.Ask(t, "environments"); !strings.Contains(list, "ci-1") {
		t.Errorf("the registry lists %q", list)
	}
	if out := executor.Printed.String(); strings.Contains(out, "signature=") {
		t.Errorf("it prints a URL:\n%s", out)
	}
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
	fails := func(environment string, flags []string, says string) {
		t.Helper()
		var stderr bytes.Buffer
		cmd := s.ExecWith(t, environment, append(flags, "--wait", "0"), "true")
		cmd.Stderr = &stderr
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 125 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%s %v: %v, it says %q, want %s", environment, flags, err, &stderr, says)
		}
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
	cmd := s.At(atHarness.Address()).ExecWith(t, "ci-1", byDirect, "cat")
	in, out := mustPipes(t, cmd)
	rig.Must(t, cmd.Start())
	say := func(text string) {
		t.Helper()
		rig.Must(t, rig.Err(fmt.Fprintln(in, text)))
		if line, err := out.ReadString('\n'); err != nil || line != text+"\n" {
			t.Fatalf("got %q, %v, want %q\n%s", line, err, text, s.Log)
		}
	}
	say("before")
	atHarness.Cut()
	say("after the harness was cut")
	atExecutor.Cut()
	say("after the executor was cut")
	s.Registry.Terminate(t)
	s.StartRegistry(t)
	say("after the registry was started again")
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, s.Log)
	}
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
	environ, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(executor.Process.Pid), "environ"))
	rig.Must(t, err)
	for what, where := range map[string]string{"a command sees": string(out), "the environment of the agent has": string(environ), "the agent prints": executor.Printed.String()} {
		for _, secret := range []string{key.Secret, "hidden", "Signature="} {
			if strings.Contains(where, secret) {
				t.Errorf("%s %.4s…", what, secret)
			}
		}
	}

	wrong := start("ci-2", key.Secret+"x")
	if code := wrong.Exit(t); code != 1 {
		t.Errorf("exit code %d with a wrong secret", code)
	}
	wrong.Says(t, "registry answered 401", 1)
	s.Ask(t, "keys", "revoke", key.ID)
	if code := executor.Exit(t); code != 1 {
		t.Errorf("exit code %d with a revoked key", code)
	}
}
