package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/test/rig"
)

// TestPrecedence: where the agent is, by what the line and the variables say.
func TestPrecedence(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.toml")
	const text = `current = "cur"
[contexts.cur]
url = "ws://current:1"
[contexts.url]
url = "ws://context:1"
[contexts.reg]
registry = "https://context"
environment_id = "of-context"
[contexts.bare]
registry = "https://bare"
[contexts.direct]
registry = "https://direct"
environment_id = "e"
transport = "direct"
`
	rig.Must(t, os.WriteFile(config, []byte(text), 0o600))
	for typed, want := range lines(t, "precedence") {
		t.Run(typed, func(t *testing.T) {
			noPlace(t)
			os.Setenv("AGENT_CONFIG", config)
			env, line, _ := strings.Cut(typed, "agent exec")
			for entry := range strings.FieldsSeq(env) {
				name, value, _ := strings.Cut(entry, "=")
				os.Setenv(name, value)
			}
			flags, _, err := parse(append(append([]string{"exec"}, strings.Fields(line)...), "--", "true"))
			rig.Must(t, err)
			f := &flags.(*execFlags).Flags
			elsewhere := f.Elsewhere()
			got := f.URL + f.Registry
			rig.Is(t, elsewhere, (want != ""), "elsewhere")
			if elsewhere && got == "" {
				got = "error"
			}
			for _, more := range []string{environmentOf(f), f.Transport, f.TokenFile, f.RegistryTokenFile} {
				if more != "" {
					got += " " + more
				}
			}
			rig.Is(t, got, want, "the result")
		})
	}
}

// noPlace takes the variables away that say where the agent is, and more of them, until the test ends.
func noPlace(t *testing.T, more ...string) {
	t.Helper()
	for _, name := range append(more, "AGENT_CONTEXT", "AGENT_URL", "AGENT_TOKEN_FILE", "AGENT_REGISTRY", "AGENT_ENVIRONMENT_ID",
		"AGENT_REGISTRY_TOKEN_FILE", "AGENT_REGISTRY_TRANSPORT", "AGENT_CONFIG") {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
}

func environmentOf(f *target.Flags) string {
	if f.EnvironmentID == nil || f.Registry == "" {
		return ""
	}
	return *f.EnvironmentID
}

// TestLoginTerminal: a key that is typed is not shown, and the terminal is as before then.
func TestLoginTerminal(t *testing.T) {
	t.Parallel()
	ptmx, tty, err := pty.Open()
	rig.Must(t, err)
	defer ptmx.Close()
	cmd := agentCommand(t, "login", "http://127.0.0.1:1", "--name", "x")
	cmd.Env = []string{"HOME=" + t.TempDir()}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	rig.Must(t, cmd.Start())
	var shown bytes.Buffer
	shows := func(text string) {
		t.Helper()
		for buffer := make([]byte, 1024); !strings.Contains(shown.String(), text); {
			n, err := ptmx.Read(buffer)
			if err != nil {
				t.Fatalf("%v: %s", err, &shown)
			}
			shown.Write(buffer[:n])
		}
	}
	shows("key for http://127.0.0.1:1: ")
	rig.Must(t, rig.Err(io.WriteString(ptmx, "s3cret\n")))
	err = cmd.Wait()
	rig.Is(t, cmd.ProcessState.ExitCode(), 1, "exit code, of %v", err)
	// The terminal echoes again.
	rig.Must(t, rig.Err(io.WriteString(ptmx, "after\n")))
	shows("after")
	tty.Close()
	if strings.Contains(shown.String(), "s3cret") || !strings.Contains(shown.String(), "connection refused") {
		t.Errorf("the terminal shows\n%s", &shown)
	}
}

// TestComplete: words for scripts, without a word about what fails.
func TestComplete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good": "[contexts.b]\nurl = 'x'\n[contexts.a]\nregistry = 'http://127.0.0.1:1'\ntoken = 't'\n", "bad": "x",
	} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, tt := range []struct{ line, config, want string }{
		{"contexts", "good", "a\nb\n"},
		{"contexts -- exec --context", "good", "a\nb\n"},
		{"contexts -- context use --config " + filepath.Join(dir, "bad"), "good", ""},
		{"contexts", "bad", ""},
		{"contexts", "missing", ""},
		{"environments -- exec --context a", "good", ""},
		{"environments -- exec --context b", "good", ""},
		{"nonsense", "good", ""},
	} {
		cmd := agentCommand(t, append([]string{"complete"}, strings.Fields(tt.line)...)...)
		cmd.Env = []string{"HOME=" + dir, "AGENT_CONFIG=" + filepath.Join(dir, tt.config)}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		rig.Check(t, err)
		rig.Is(t, string(out)+stderr.String(), tt.want, "%s", tt.line)
	}
}
