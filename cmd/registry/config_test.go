package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/test/rig"
)

// withFile is command for a user who has a file.
func withFile(t *testing.T, text string, args ...string) (code int, stdout, stderr, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	var out, complaints bytes.Buffer
	code = run(system{args: args, home: t.TempDir(), config: path, stdout: &out, stderr: &complaints})
	return code, out.String(), complaints.String(), path
}

// TestConfigShow: a file, a variable and a flag, each over the one before it.
func TestConfigShow(t *testing.T) {
	t.Setenv("REGISTRY_STREAMS", "3")
	const text = "[registry.serve]\nstreams = 2\nbytes = 9\nallow-uid = [1, 2]\nlisten = 'unix:///s'\n[registry.keys.create]\nlabel = 'x'\nnats-url = 'nats://u:s3cret@h'\n[exec]\nwait = '1s'\n"
	code, out, said, path := withFile(t, text, "config", "show", "-o", "json", "serve", "--bytes", "10")
	var shown []cli.Shown
	if err := json.Unmarshal([]byte(out), &shown); err != nil || code != exitOK || said != "" {
		t.Fatalf("%d, %s, %v", code, said, err)
	}
	got := map[string]string{}
	for _, s := range shown {
		got[s.Option] = strings.Join(s.Value, ",") + " " + s.From()
	}
	for option, want := range map[string]string{
		"streams": "3 REGISTRY_STREAMS", "bytes": "10 --bytes", "allow-uid": "1,2 " + path + ":4", "connections": "10000 default",
	} {
		rig.Is(t, got[option], want, "%s", option)
	}
	code, out, said, path = withFile(t, text, "config", "show")
	if code != exitOK || said != "" || strings.Contains(out, "s3cret") || !strings.Contains(out, "keys create") || !strings.Contains(out, path+":7") || strings.Contains(out, "connections") {
		t.Errorf("%d, %s, %s", code, out, said)
	}
}

// TestConfigErrors: a wrong file is told with its line, by each command that reads it.
func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, line, want string
	}{
		{"[registry.serve]\nstraems = 2", "serve", `:2: unknown key "straems": registry serve has no option of that name; did you mean streams?`},
		{"[registry.serve]\nstraems = 2", "config show", `:2: unknown key "straems"`},
		{"", "config show serve --straems 3", `unknown flag --straems, did you mean "--streams"?`},
		{"", "config show serve --streams 3 -o json", "unknown flag -o"},
		{"[registry.sreve]\nstreams = 2", "keys list", `:1: unknown key "sreve": there is no command of that name; did you mean serve?`},
		{"[registry.serve]\nstreams = 'many'", "", ":2: streams is not a whole number in its range"},
		{"[registry.keys.revoke]\nnope = 1", "keys revoke -- -h", `:2: unknown key "nope"`}, // -h is no flag here
		{"[registry.serve]\ngrace = '-1s'", "serve --listen 127.0.0.1:0", "--grace -1s is not positive (registry config show serve shows which files set its options)"},
	} {
		code, _, said, path := withFile(t, tt.text, strings.Fields(tt.line)...)
		want := tt.want
		if want[0] == ':' {
			want = path + want
		}
		if !strings.HasPrefix(said, "registry: "+want) || code != exitUsage {
			t.Errorf("%q with registry %s: %d, %s", tt.text, tt.line, code, said)
		}
		// What is wrong in a file keeps nobody from reading how it is written.
		code, out, said, _ := withFile(t, tt.text, "version")
		rig.Is(t, code == exitOK && out != "", true, "version: %d, %s", code, said)
	}
}

// TestConfigTable: values of a file are those that a command works with.
func TestConfigTable(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	mustRun(t, "keys", "create", "--role=harness", "--environment=*", "--data", data)
	code, out, said, _ := withFile(t, "[registry.keys.list]\ndata = '"+data+"'\njson = true", "keys", "list")
	rig.Is(t, code, exitOK, "exit code, %s", said)
	rig.Is(t, strings.HasPrefix(out, "[") && strings.Contains(out, "harness"), true, "keys: %s", out)
}
