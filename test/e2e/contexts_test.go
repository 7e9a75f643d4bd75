package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// account is that of somebody with a home of their own who types commands.
type account struct{ home string }

func newAccount(t *testing.T) *account {
	t.Helper()
	return &account{t.TempDir()}
}

// command is one of the agent's program.
func (u *account) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := rig.Command(t, rig.Agent(t), args...)
	cmd.Env = []string{"PATH=" + filepath.Dir(rig.Agent(t)) + ":" + os.Getenv("PATH"), "HOME=" + u.home}
	return cmd
}

// types runs a command with an input.
func (u *account) types(t *testing.T, input string, args ...string) result {
	t.Helper()
	cmd := u.command(t, args...)
	cmd.Stdin = strings.NewReader(input)
	return finish(t, cmd)
}

// TestContexts: a key for a registry is stored by login, environments are listed, and commands
// run where contexts say.
func TestContexts(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	// An environment that another pattern is for: nobody with a key of ci-* hears of it.
	hidden := s.At(s.Address)
	hidden.Pattern = "prod-*"
	hidden.CreateKeys(t)
	hidden.Serve(t, "prod-1")
	u := newAccount(t)

	console(t, "contexts", "/", append(u.command(t).Env, "URL="+s.URL(), "HARNESS="+s.Harness, "EXECUTOR="+s.Executor, "HIDDEN="+hidden.Harness)...)

	// A shell is not kept waiting for long, so on a busy machine nothing may be offered.
	rig.Until(t, "the environments are offered", func() bool {
		return u.types(t, "", "complete", "environments", "--", "exec", "--environment-id").stdout == "ci-1\n"
	})

	// The table and the JSON of environments.
	r := u.types(t, "", "environments", "-o", "json")
	var listed []wire.Environment
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || r.code != 0 || len(listed) != 1 || listed[0].ID != "ci-1" || !listed[0].Online || listed[0].Since.IsZero() {
		t.Errorf("environments: %+v, %v", r, err)
	}
	matches(t, u.types(t, "", "environments").stdout, `^ENVIRONMENT  STATE   SINCE +EXECUTOR\nci-1         online  (now|\d+ \w+ ago) +key:\S+\n$`)

	// The key is in one file, which only the user can read.
	found := 0
	err := filepath.WalkDir(u.home, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(s.Harness)) {
			found++
		}
		if info, infoErr := entry.Info(); infoErr != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), infoErr)
		}
		return err
	})
	rig.Must(t, err)
	rig.Is(t, found, 1, "files with the key")

	// A revoked key is told so.
	revoked, id := s.CreateKey(t, "harness")
	rig.Is(t, u.types(t, revoked, "login", s.URL(), "--name", "other", "--environment-id", "ci-1").code, 0, "another key")
	s.Ask(t, "keys", "revoke", id)
	for _, args := range [][]string{{"environments", "--context", "other"}, {"exec", "--context", "other", "--", "true"}} {
		r := u.types(t, "", args...)
		has(t, ending(r.stderr, r.code), "401 unauthorized", "exit ")
		lacks(t, r.stderr, revoked)
	}
	rig.Is(t, u.types(t, "", "context", "remove", "-f", "other", "ci"), result{}, "remove")
	isEmpty(t, filepath.Join(u.home, ".config/execagent/keys"))
}

// TestRegistryMistakes: what users get wrong with a registry that is there.
func TestRegistryMistakes(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	console(t, "registry_mistakes", "/", "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"), "HOME=/", "AGENT_LOG_LEVEL=warn",
		"URL="+s.URL(), "ADDRESS="+s.Address, "HARNESS="+s.Harness, "EXECUTOR="+s.Executor)
}

// TestContextTLS: commands run where a context with TLS says, with its authority, certificate and
// token; not where one of these is missing or wrong. The log says how, and no secret.
func TestContextTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, by := range map[string]string{"ca": "ca", "other": "other"} {
		certify(t, dir, name, by)
	}
	certify(t, dir, "agent", "ca")
	certify(t, dir, "me", "ca")
	in := func(name string) string { return filepath.Join(dir, name) }
	const token = "opensesame-token"
	rig.Must(t, os.WriteFile(in("token"), []byte(token), 0o600))
	url := connect(t, exec.Command(rig.Agent(t), "--listen", "127.0.0.1:0", "--tls-cert", in("agent.crt"), "--tls-key", in("agent.key"), "--tls-client-ca", in("ca.crt"),
		"--ws-auth", "capability-token", "--ws-token-file", in("token"))).line(t)
	address := strings.TrimPrefix(url, "wss://")
	u := newAccount(t)
	certificate := " --tls-cert " + in("me.crt") + " --tls-key " + in("me.key")
	for name, tt := range map[string]struct{ flags, said string }{
		"whole":   {" --tls-ca " + in("ca.crt") + certificate + " --token-file " + in("token"), ""},
		"noca":    {certificate + " --token-file " + in("token"), "certificate signed by unknown authority (see --tls-ca)"},
		"foreign": {" --tls-ca " + in("other.crt") + certificate + " --token-file " + in("token"), "certificate signed by unknown authority"},
		"nocert":  {" --tls-ca " + in("ca.crt") + " --token-file " + in("token"), "certificate required (see --tls-cert)"},
		"notoken": {" --tls-ca " + in("ca.crt") + certificate, "401"},
		"named":   {" --tls-ca " + in("ca.crt") + certificate + " --tls-server-name elsewhere --token-file " + in("token"), "elsewhere"},
	} {
		rig.Is(t, u.types(t, "", strings.Fields("context add "+name+" --url wss://"+address+tt.flags)...).code, 0, "context add %s", name)
		r := u.types(t, "", "exec", "--context", name, "--log-level", "debug", "--", "echo", "served")
		if good := tt.said == ""; good != (r.code == 0) || good != (r.stdout == "served\n") {
			t.Errorf("%s: %+v", name, r)
		}
		has(t, r.stderr, tt.said, "msg=connecting agent="+url, "context="+name)
		lacks(t, r.stderr, token)
	}
}

// TestContextToken: the token of a command reaches the agent, once for a run, is in nobody's
// arguments, and is printed nowhere. When it is no longer taken, the command is run again.
func TestContextToken(t *testing.T) {
	t.Parallel()
	const token = "a-token-that-nobody-sees"
	u := newAccount(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	rig.Must(t, os.WriteFile(secret, []byte(token+"\n"), 0o600))
	ran := filepath.Join(dir, "ran")
	script := filepath.Join(dir, "get-token")
	rig.Must(t, rig.WriteProgram(script, []byte("#!/bin/sh\necho \"$# $*\" >>"+ran+"\ncat "+secret+"\n")))
	agent := rig.Start(t, exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", secret))
	url := agent.Line(t)
	for _, args := range [][]string{
		{"context", "add", "box", "--url", url, "--token-command", script + " one two", "--use"},
		{"context", "add", "none", "--url", url},
	} {
		rig.Is(t, u.types(t, "", args...).code, 0, "%q: exit code", args)
	}
	r := u.types(t, "", "exec", "--log-level", "debug", "--", "sh", "-c", "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '")
	rig.Is(t, r.code, 0, "%s: exit code", r.stderr)
	lacks(t, r.stdout+r.stderr+agent.Printed.String(), token)
	rig.Is(t, textOf(os.ReadFile(ran)), "2 one two\n", "the command ran with")
	r = u.types(t, "", "exec", "--context", "none", "--", "true")
	has(t, ending(r.stderr, r.code), "401", "exit 125\n")
	for _, args := range [][]string{{"context", "show"}, {"context", "show", "-o", "json"}, {"context", "list"}} {
		shown := u.types(t, "", args...).stdout
		has(t, shown, script)
		lacks(t, shown, token)
	}
	has(t, u.types(t, "", "context", "list", "-o", "json").stdout, `"tokenCommand": [`)
}

// TestRegistryStatus: what a registry says of itself, by its store and by its URL.
func TestRegistryStatus(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t, "--streams", "77", "--bytes", "3M")
	s.Serve(t, "ci-1")
	rig.Until(t, "the server has introduced itself", func() bool { return strings.Contains(s.Ask(t, "status"), " 77 ") })
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"status"}, []string{"store: embedded (NATS 2.", "keys: 2 valid, 0 expired, 0 revoked", "environments: 1 registered, 1 online", " 77 ", " 3145728 ", "ci-1 "}},
		{[]string{"status", "-o", "json"}, []string{`"kind": "embedded"`, `"streams": 77`, `"bytes": 3145728`, `"grace": "30s"`, `"registered": 1`, `"valid": 2`, `"id": "ci-1"`}},
		{[]string{"status", "--url", s.URL()}, []string{"state: ready", "version: 0.", "websockets: 1 of executors, 0 of harnesses", "limit streams: 77", "limit bytes: 3145728"}},
		{[]string{"status", "--url", s.URL() + "/readyz", "-o", "json"}, []string{`"ready": true`, `"executors": 1`, `"request-burst": 5000`}},
		{[]string{"status", "--url", s.Address}, []string{"state: ready"}},
		{[]string{"environments", "-o", "json"}, []string{`"id": "ci-1"`}},
		{[]string{"keys", "list", "-o", "json"}, []string{`"role": "harness"`}},
	} {
		out := s.Ask(t, tt.args...)
		has(t, out, tt.want...)
		lacks(t, out, s.Harness, s.Executor)
	}
	s.Registry.Terminate(t)
	for _, args := range [][]string{{"status", "--data", s.Data}, {"status", "--url", s.URL()}} {
		has(t, says(t, rig.Command(t, rig.Registry(t), args...)), "exit 1\n")
	}
}

// TestCompletionAsks: the scripts of bash, zsh and fish offer what the program knows.
func TestCompletionAsks(t *testing.T) {
	t.Parallel()
	u := newAccount(t)
	for _, name := range []string{"box", "build"} {
		rig.Is(t, u.types(t, "", "context", "add", name, "--url", "127.0.0.1:1").code, 0, "context add")
	}
	for shell, argv := range map[string][]string{
		"bash": {"bash", "--norc", "-c", `source <(agent completion bash); COMP_WORDS=(agent exec --context bu) COMP_CWORD=3; _agent; printf '%s\n' "${COMPREPLY[@]}"`},
		"fish": {"fish", "--no-config", "-c", `agent completion fish | source; complete -C "agent exec --context bu"`},
		// zsh completes only in its line editor: a second zsh, at a terminal of the first.
		"zsh": {"zsh", "-f", "-c", `
			zmodload zsh/zpty
			zpty z zsh -f -i
			zpty -w z "PS1=; autoload -U compinit; compinit -u -D; source <(agent completion zsh); echo re''ady"
			zpty -r z said '*ready*'
			zpty -w -n z $'agent exec --context bu\t'
			zpty -r -m z said '*--context build*' && echo build
			zpty -d z`},
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("%s is not installed", shell)
			}
			cmd := u.command(t)
			cmd.Path, _ = exec.LookPath(shell)
			cmd.Args = argv
			cmd.Env = append(cmd.Env, "TERM=dumb")
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if word, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\t"); err != nil || word != "build" {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
}
