package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/execagent/execagent/cmd/agent/plain"
	"github.com/execagent/execagent/cmd/internal/layers"
)

// TestTables: a file can have a table for each command with options that a file can set, and for
// no other one.
func TestTables(t *testing.T) {
	t.Parallel()
	for _, name := range commandNames() {
		settable := false
		if flags := newFlags(name); flags != nil && name != "version" {
			settable = slices.ContainsFunc(plain.Of(flags).Options(), func(o layers.Option) bool { return o.Settable() })
		}
		if layers.Table(name) != settable {
			t.Errorf("%s: a table %v, options that can be set %v", name, layers.Table(name), settable)
		}
	}
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range commandNames() {
		if !layers.Table(name) {
			continue
		}
		got, want := plain.Of(newFlags(name)).Options(), layers.Options(layers.Find(parser.Model, name))
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b reflect.Type) bool { return a == b })); diff != "" {
			t.Errorf("%s (-parser +plain):\n%s", name, diff)
		}
	}
}

// filedBy returns what a file of the user says about a command. With required it is over flags.
func filedBy(t *testing.T, text, command string, required bool) layers.Values {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := layers.Read("agent", path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := files.Of(command, plain.Of(newFlags(command)).Options(), layers.Shared{})
	if err != nil {
		t.Fatal(err)
	}
	values := l.Merge(nil, func(string) (string, bool) { return "", false })
	for name, v := range values {
		v.Required = required
		values[name] = v
	}
	return values
}

const everyKind = `
[exec]
wait = "3s"
log-level = "warn"
tty = true
env = ["A=1", "B=2"]
env-file = ["/a", "/b"]
on-disconnect = "keep"
url = "ws://127.0.0.1:7000"
token-file = "/t"
[exec-server]
listen = "unix:///s"
allow-uid = [3, 4]
retain-bytes = "64K"
retain-total-bytes = 9
session-ttl = "5m"
concurrent-requests = 2
ws-auth = "capability-token"
ws-token-file = "/t"
metrics = true
max-processes = 7
[sandbox]
workspace = ["/x", "/y,z"]
network = ["off"]
`

// TestFiled: the parser and the reader of plain lines take the same from files, whether it is
// over the line or below it, and say the same about it.
func TestFiled(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"exec true", "exec -t -- true", "exec --wait 4s true", "exec -e C=3 -e D=4 true", "exec --url ws://127.0.0.1:1 true",
		"exec --log-level debug -C /x true", "exec --wait=3s true", "exec --token-file=/other true",
		"", "--listen unix:///t", "--retain-bytes 5", "--session-ttl 1h --concurrent-requests 2", "exec-server --ws-auth capability-token --max-processes 1",
		"sandbox true", "sandbox --workspace /a --workspace /b true", "sandbox --network on -- true",
	} {
		for _, required := range []bool{false, true} {
			args := strings.Fields(line)
			name := commandOf(args)
			if name == "" {
				name = "exec-server"
			}
			values := filedBy(t, everyKind, name, required)
			want, wantSaid, err := parseAny(args, values, io.Discard, io.Discard)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			got, said := parseOne(args, values)
			if got == nil {
				t.Errorf("%s is not plain", line)
				continue
			}
			slices.Sort(wantSaid)
			slices.Sort(said)
			if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Errorf("%s, required %v (-parser +plain):\n%s", line, required, diff)
			}
			if diff := cmp.Diff(wantSaid, said); diff != "" || !required && len(said) > 0 {
				t.Errorf("%s, required %v (-parser +plain):\n%s", line, required, diff)
			}
		}
	}
}

// TestRequired: nothing on a line is over what is required, in whichever way it is written.
func TestRequired(t *testing.T) {
	t.Parallel()
	values := filedBy(t, "[exec]\nlog-level = 'error'\ndir = '/required'\nenv = ['A=1']\n", "exec", true)
	for _, line := range []string{
		"exec --log-level debug true", "exec --log-level=debug true", "exec -C /x true", "exec -C/x true", "exec -tC /x true", "exec -te B=2 true", "exec -e B=2 -e C=3 true",
		"exec --dir /x --dir /y true", "exec true",
	} {
		args := strings.Fields(line)
		flags, said, err := parseAny(args, values, io.Discard, io.Discard)
		if one, saidOne := parseOne(args, values); one != nil {
			flags, said, err = one, saidOne, nil
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		f := flags.(*execFlags)
		if f.LogLevel != "error" || f.Dir != "/required" || !slices.Equal(f.Env, []string{"A=1"}) || (len(said) > 0) != (line != "exec true") {
			t.Errorf("%s: %s %s %q, said %q", line, f.LogLevel, f.Dir, f.Env, said)
		}
	}
	// What has no effect is checked all the same.
	var out bytes.Buffer
	if _, _, err := parseAny(strings.Fields("exec --log-level loud true"), values, &out, &out); err == nil {
		t.Error("a wrong level is taken")
	}
}

// TestPlaceOfServer: who listens does not register, with nothing that is about that.
func TestPlaceOfServer(t *testing.T) {
	for _, tt := range []struct{ file, variables string }{
		{"[exec-server]\nremote = 'https://reg'\nenvironment-id = 'e'\ntransport = 'direct'\n", ""},
		{"", "AGENT_REMOTE=https://reg AGENT_ENVIRONMENT_ID=e AGENT_TRANSPORT=direct"},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AGENT_CONFIG", path)
		for variable := range strings.FieldsSeq(tt.variables) {
			name, value, _ := strings.Cut(variable, "=")
			t.Setenv(name, value)
		}
		flags, _, err := parse([]string{"--listen", "unix:///s"}, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if f := flags.(*serverFlags); f.Remote != nil || f.Transport != "" {
			t.Errorf("%+v: %v, %s", tt, f.Remote, f.Transport)
		}
	}
}

// TestPlace: who names an agent by a flag or a variable gets that one, with nothing that a file
// says about another one.
func TestPlace(t *testing.T) {
	const box = "[exec]\nurl = 'wss://box:1'\ntoken-file = '/box'\ntls-ca = '/ca'\n"
	const reg = "[exec]\nregistry = 'https://reg'\nenvironment-id = 'e'\nregistry-token-file = '/reg'\ntransport = 'direct'\n"
	for _, tt := range []struct{ file, variable, line, want string }{
		{box, "", "", "wss://box:1 /box /ca"},
		{box, "", "--local", ""},
		{box, "", "--url wss://other:1", "wss://other:1"},
		{box, "", "--url wss://box:1", "wss://box:1 /box /ca"},
		{box, "", "--token-file /mine", "wss://box:1 /mine /ca"},
		{box, "AGENT_URL=wss://other:1", "", "wss://other:1"},
		{box, "AGENT_TOKEN_FILE=/variable", "", "wss://box:1 /box /ca"},
		{box, "", "--registry https://r --environment-id x", "https://r x"},
		{"[client]\nurl = 'wss://c:1'\ntoken-file = '/c'\ntls-ca = '/ca'\n", "", "", "wss://c:1 /c /ca"},
		{"[client]\nurl = 'wss://c:1'\ntoken-file = '/c'\ntls-ca = '/ca'\n", "", "--url wss://other:1", "wss://other:1"},
		{"[client]\nurl = 'wss://c:1'\ntoken-file = '/c'\ntls-ca = '/ca'\n" + reg, "", "", "https://reg e /reg"},
		{"[client]\nurl = 'wss://box:1'\ntls-ca = '/c'\ntls-server-name = 'c'\n" + box, "", "", "wss://box:1 /box /ca"},
		{reg, "", "", "https://reg e /reg"},
		{reg, "", "--environment-id x", "https://reg x /reg"},
		{reg, "", "--url wss://other:1", "wss://other:1"},
		{reg, "", "--local", ""},
		{reg, "AGENT_REGISTRY=https://other", "--environment-id x", "https://other x"},
		{reg, "AGENT_REGISTRY=https://other", "--registry https://reg", "https://reg e /reg"},
	} {
		t.Run(tt.variable+" "+tt.line, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"AGENT_URL", "AGENT_REGISTRY", "AGENT_CONTEXT", "AGENT_ENVIRONMENT_ID", "AGENT_TOKEN_FILE", "AGENT_REGISTRY_TOKEN_FILE", "AGENT_REGISTRY_TRANSPORT"} {
				t.Setenv(name, "")
				_ = os.Unsetenv(name)
			}
			if name, value, ok := strings.Cut(tt.variable, "="); ok {
				t.Setenv(name, value)
			}
			t.Setenv("AGENT_CONFIG", path)
			flags, _, err := parse(append(append([]string{"exec"}, strings.Fields(tt.line)...), "--", "true"), io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			f := flags.(*execFlags)
			words := []string{f.URL, f.Registry}
			if f.EnvironmentID != nil {
				words = append(words, *f.EnvironmentID)
			}
			words = append(words, f.TokenFile, f.RegistryTokenFile, f.TLSCA)
			words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
			if got := strings.Join(words, " "); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestClientTable: the table that clients share is for all of them and for no server, and a
// mistake in it is one of theirs alone. What completes a line reads it too.
func TestClientTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"AGENT_URL", "AGENT_REGISTRY", "AGENT_CONTEXT", "AGENT_ENVIRONMENT_ID", "AGENT_TOKEN_FILE", "AGENT_LOG_LEVEL", "AGENT_EXEC_LOG_LEVEL"} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	t.Setenv("AGENT_CONFIG", path)
	write("[client]\nurl = 'wss://c:1'\nlog-level = 'debug'\n[logs]\nurl = 'wss://logs:1'\n")
	for line, want := range map[string]string{"logs -f ": "wss://logs:1", "ps ": "wss://c:1", "attach --url wss://x:1 ": "wss://x:1", "--listen ": ""} {
		if got := atLine(append(strings.Fields(line), "")).URL; got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	flags, _, err := parse([]string{"--listen", "unix:///s"}, io.Discard, io.Discard)
	if err != nil || flags.(*serverFlags).LogLevel == "debug" {
		t.Errorf("a server: %+v, %v", flags, err)
	}
	all, err := grammar.Explain(nil, commandNames(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for _, s := range all {
		if s.Option == "url" {
			at[s.Command] = s.From()
		}
	}
	if at["logs"] != path+":5" || at["exec"] != path+":2" || at["cp"] != path+":2" || at["exec-server"] != "" {
		t.Errorf("%v", at)
	}
	if _, err := grammar.Explain([]string{"client"}, nil, func(string) {}); err == nil || !strings.Contains(err.Error(), "client is no command") {
		t.Error(err)
	}
	write("[client]\ntty = true\n")
	if _, _, err := parse([]string{"--listen", "unix:///s"}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	if _, _, err := parse([]string{"ps"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), ":2: unknown key") {
		t.Error(err)
	}
}
