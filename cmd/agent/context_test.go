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
	for _, tt := range []struct{ line, env, want string }{
		{"", "", "ws://current:1"},
		{"--local", "", ""},
		{"--local", "AGENT_URL=ws://variable:1 AGENT_CONTEXT=url", ""},
		{"--context=", "", ""},
		{"", "AGENT_CONTEXT=", ""},
		{"--context url", "", "ws://context:1"},
		{"--context=reg", "", "https://context of-context"},
		{"--context reg --environment-id line", "", "https://context line"},
		{"--context reg", "AGENT_ENVIRONMENT_ID=variable", "https://context of-context"},
		{"--context bare --environment-id line", "", "https://bare line"},
		{"", "AGENT_CONTEXT=bare AGENT_ENVIRONMENT_ID=variable", "https://bare variable"},
		{"", "AGENT_CONTEXT=url", "ws://context:1"},
		{"--context direct", "", "https://direct e direct"},
		{"--context direct --transport noise", "", "https://direct e noise"},
		{"--context direct", "AGENT_REGISTRY_TRANSPORT=noise", "https://direct e direct"},
		{"", "AGENT_CONTEXT=direct AGENT_REGISTRY_TRANSPORT=noise", "https://direct e noise"},
		{"--context reg --transport direct", "", "https://context of-context direct"},
		{"--context reg", "AGENT_REGISTRY_TRANSPORT=direct", "https://context of-context"},
		{"--url ws://line:1", "AGENT_REGISTRY_TRANSPORT=direct", "ws://line:1"},
		{"--local", "AGENT_REGISTRY_TRANSPORT=direct", ""},
		{"", "AGENT_CONTEXT=nope", "error"},
		{"", "AGENT_URL=ws://variable:1", "ws://variable:1"},
		{"", "AGENT_URL=ws://variable:1 AGENT_CONTEXT=reg", "ws://variable:1"},
		{"", "AGENT_REGISTRY=https://variable AGENT_ENVIRONMENT_ID=v AGENT_CONTEXT=url", "https://variable v"},
		{"--context url", "AGENT_URL=ws://variable:1", "ws://context:1"},
		{"--context url", "AGENT_REGISTRY=https://variable AGENT_ENVIRONMENT_ID=v", "ws://context:1"},
		{"--url ws://line:1", "AGENT_CONTEXT=reg", "ws://line:1"},
		{"--url ws://line:1", "AGENT_CONTEXT=nope", "ws://line:1"},
		{"--registry https://line --environment-id e", "AGENT_CONTEXT=url", "https://line e"},
		{"--url ws://line:1", "", "ws://line:1"},
		// A token without what it is for is not shown to the agent of a context.
		{"", "AGENT_TOKEN_FILE=/stray AGENT_REGISTRY_TOKEN_FILE=/stray", "ws://current:1"},
		{"--token-file /line", "", "ws://current:1 /line"},
		{"--context reg --registry-token-file /line", "AGENT_TOKEN_FILE=/stray", "https://context of-context /line"},
		// The token of a variable is for what a variable names, if one does.
		{"--url ws://line:1", "AGENT_TOKEN_FILE=/key", "ws://line:1 /key"},
		{"--url ws://line:1", "AGENT_URL=ws://line:1 AGENT_TOKEN_FILE=/key", "ws://line:1 /key"},
		{"--url ws://line:1", "AGENT_URL=ws://variable:1 AGENT_TOKEN_FILE=/key", "ws://line:1"},
		{"--url=ws://line:1 --token-file /line", "AGENT_URL=ws://variable:1 AGENT_TOKEN_FILE=/key", "ws://line:1 /line"},
		{"--url ws://line:1", "AGENT_REGISTRY=https://variable AGENT_TOKEN_FILE=/key", "ws://line:1 /key"},
		{"--registry https://line --environment-id e", "AGENT_REGISTRY_TOKEN_FILE=/key", "https://line e /key"},
		{"--registry https://line --environment-id e", "AGENT_REGISTRY=https://line AGENT_REGISTRY_TOKEN_FILE=/key", "https://line e /key"},
		{"--registry https://line --environment-id e", "AGENT_REGISTRY=https://variable AGENT_REGISTRY_TOKEN_FILE=/key", "https://line e"},
		{"--registry https://line --environment-id e --registry-token-file /line", "AGENT_REGISTRY=https://variable AGENT_REGISTRY_TOKEN_FILE=/key", "https://line e /line"},
		// The transport of a variable is no way to what is not behind a registry.
		{"--registry https://line --environment-id e", "AGENT_REGISTRY_TRANSPORT=direct", "https://line e direct"},
		{"--context reg", "AGENT_REGISTRY_TRANSPORT=direct", "https://context of-context"},
		{"--url ws://line:1", "AGENT_REGISTRY=https://variable AGENT_REGISTRY_TRANSPORT=direct", "ws://line:1"},
		{"", "AGENT_URL=ws://variable:1 AGENT_REGISTRY_TRANSPORT=direct", "ws://variable:1"},
		{"--local", "AGENT_REGISTRY_TRANSPORT=direct", ""},
		{"", "AGENT_CONFIG=/no/such/file", ""},
		{"--context url", "AGENT_CONFIG=/no/such/file", "error"},
		{"", "AGENT_CONFIG=/dev/null", ""},
		{"--context url", "AGENT_CONFIG=/dev/null", "error"},
	} {
		t.Run(tt.line+" "+tt.env, func(t *testing.T) {
			noPlace(t)
			os.Setenv("AGENT_CONFIG", config)
			for entry := range strings.FieldsSeq(tt.env) {
				name, value, _ := strings.Cut(entry, "=")
				os.Setenv(name, value)
			}
			flags, _, err := parse(append(append([]string{"exec"}, strings.Fields(tt.line)...), "--", "true"))
			rig.Must(t, err)
			f := &flags.(*execFlags).Flags
			elsewhere := f.Elsewhere()
			got := f.URL + f.Registry
			rig.Is(t, elsewhere, (tt.want != ""), "elsewhere")
			if elsewhere && got == "" {
				got = "error"
			}
			for _, more := range []string{environmentOf(f), f.Transport, f.TokenFile, f.RegistryTokenFile} {
				if more != "" {
					got += " " + more
				}
			}
			rig.Is(t, got, tt.want, "the result")
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
