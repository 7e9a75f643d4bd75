package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/test/rig"
)

// TestTables: a file can have a table for each command with options that a file can set, and for
// no other one.
func TestTables(t *testing.T) {
	t.Parallel()
	for _, c := range commands.Root().Shown() {
		settable := false
		if len(c.Below()) == 0 && c.Name != "version" {
			settable = slices.ContainsFunc(c.Of(c.New()).Options(), func(o cli.Option) bool { return o.Settable() })
		}
		rig.Is(t, cli.HasTable(c.Name), settable, "%s: there is a table", c.Name)
	}
}

// filedBy returns what a file of the user says about a command. With required it is over flags.
func filedBy(t *testing.T, text, command string, required bool) cli.Values {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	files := rig.Value(cli.ReadFiles("agent", path))
	l := rig.Value(files.Of(command, commands.Find(command).Of(commands.Find(command).New()).Options(), cli.Shared{}))
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
dir = "/required"
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

// TestFiled: what a file says counts below what a line says, or over it, and then it is told what
// has no effect, which is checked all the same.
func TestFiled(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/config.txt", "filed", 5) {
		line, fields := row[0], row[1]
		for _, required := range []bool{false, true} {
			args := strings.Fields(line)
			named, _ := commands.Command(args)
			filed := filedBy(t, everyKind, cmp.Or(named.Path, "exec-server"), required)
			got, err := read(args, filed)
			rig.Must(t, err)
			var is, overrides []string
			for name := range strings.FieldsSeq(fields) {
				is = append(is, fmt.Sprint(reflect.Indirect(reflect.ValueOf(got.Flags).Elem().FieldByName(name))))
			}
			for _, override := range got.Overrides {
				overrides = append(overrides, override[:strings.IndexByte(override, ' ')])
			}
			values, effect := row[2], ""
			if required {
				values, effect = row[3], row[4]
			}
			slices.Sort(overrides)
			rig.Is(t, strings.Join(is, " "), values, "%s, required %v", line, required)
			rig.Is(t, strings.Join(overrides, " "), effect, "%s, required %v: without effect are", line, required)
		}
	}
	rig.Is(t, rig.Err(read(strings.Fields("exec --log-level loud true"), filedBy(t, everyKind, "exec", true))) != nil, true, "a wrong level is refused")
}

// TestPlaceOfServer: who listens does not register, with nothing that is about that.
func TestPlaceOfServer(t *testing.T) {
	for _, tt := range []struct{ file, variables string }{
		{"[exec-server]\nremote = 'https://reg'\nenvironment-id = 'e'\ntransport = 'direct'\n", ""},
		{"", "AGENT_REMOTE=https://reg AGENT_ENVIRONMENT_ID=e AGENT_TRANSPORT=direct"},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		rig.Must(t, os.WriteFile(path, []byte(tt.file), 0o600))
		t.Setenv("AGENT_CONFIG", path)
		for variable := range strings.FieldsSeq(tt.variables) {
			name, value, _ := strings.Cut(variable, "=")
			t.Setenv(name, value)
		}
		flags, _, err := parse([]string{"--listen", "unix:///s"})
		rig.Must(t, err)
		f := flags.(*serverFlags)
		rig.Is(t, f.Remote == nil && f.Transport == "", true, "%+v: %v, %s", tt, f.Remote, f.Transport)
	}
}

// TestPlace: who names an agent by a flag or a variable gets that one, with nothing that a file
// says about another one.
func TestPlace(t *testing.T) {
	const box = "[exec]\nurl = 'wss://box:1'\ntoken-file = '/box'\ntls-ca = '/ca'\n"
	const reg = "[exec]\nregistry = 'https://reg'\nenvironment-id = 'e'\nregistry-token-file = '/reg'\ntransport = 'direct'\n"
	const client = "[client]\nurl = 'wss://c:1'\ntoken-file = '/c'\ntls-ca = '/ca'\n"
	files := map[string]string{
		"box": box, "reg": reg, "client": client, "client, reg": client + reg,
		"client of box, box": "[client]\nurl = 'wss://box:1'\ntls-ca = '/c'\ntls-server-name = 'c'\n" + box,
	}
	for _, row := range rig.Rows(t, "testdata/config.txt", "places", 4) {
		file, variable, line := files[row[0]], row[1], row[2]
		t.Run(row[0]+" "+variable+" "+line, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			rig.Must(t, os.WriteFile(path, []byte(file), 0o600))
			noPlace(t)
			if name, value, ok := strings.Cut(variable, "="); ok {
				t.Setenv(name, value)
			}
			t.Setenv("AGENT_CONFIG", path)
			flags, _, err := parse(append(append([]string{"exec"}, strings.Fields(line)...), "--", "true"))
			rig.Must(t, err)
			f := flags.(*execFlags)
			words := []string{f.URL, f.Registry}
			if f.EnvironmentID != nil {
				words = append(words, *f.EnvironmentID)
			}
			words = append(words, f.TokenFile, f.RegistryTokenFile, f.TLSCA)
			words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
			rig.Is(t, strings.Join(words, " "), row[3], "the result")
		})
	}
}

// TestClientTable: the table that clients share is for all of them and for no server, and a
// mistake in it is one of theirs alone. What completes a line reads it too.
func TestClientTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	write := func(text string) {
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	noPlace(t, "AGENT_LOG_LEVEL", "AGENT_EXEC_LOG_LEVEL")
	t.Setenv("AGENT_CONFIG", path)
	write("[client]\nurl = 'wss://c:1'\nlog-level = 'debug'\n[logs]\nurl = 'wss://logs:1'\n")
	for line, want := range map[string]string{"logs -f ": "wss://logs:1", "ps ": "wss://c:1", "attach --url wss://x:1 ": "wss://x:1", "--listen ": ""} {
		rig.Is(t, atLine(append(strings.Fields(line), "")).URL, want, "%s", line)
	}
	flags, _, err := parse([]string{"--listen", "unix:///s"})
	rig.Must(t, err)
	rig.Is(t, flags.(*serverFlags).LogLevel == "debug", false, "a server has the level of clients")
	all := rig.Value(grammar.Explain(nil, func(string) {}))
	at := map[string]string{}
	for _, s := range all {
		if s.Option == "url" {
			at[s.Command] = s.From()
		}
	}
	if at["logs"] != path+":5" || at["exec"] != path+":2" || at["cp"] != path+":2" || at["exec-server"] != "" {
		t.Errorf("%v", at)
	}
	rig.Says(t, rig.Err(grammar.Explain([]string{"client"}, func(string) {})), "client is not a command", "the shared table")
	write("[client]\ntty = true\n")
	_, _, err = parse([]string{"--listen", "unix:///s"})
	rig.Check(t, err)
	_, _, err = parse([]string{"ps"})
	rig.Says(t, err, ":2: unknown key", "a mistake in the table")
}
