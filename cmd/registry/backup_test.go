package main

import (
	"bytes"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/test/rig"
)

// accepted is the status with which a registry lists the environments for a key.
func accepted(t *testing.T, url, key string) int {
	t.Helper()
	return ask(t, "GET", url+"/cloud/environments", key)
}

// ask is the status of the answer to a request with a key, and with a body that says nothing.
func ask(t *testing.T, method, url, key string) int {
	t.Helper()
	request := rig.Value(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}")))
	request.Header.Set("Authorization", "Bearer "+key)
	response := rig.Value(http.DefaultClient.Do(request))
	response.Body.Close()
	return response.StatusCode
}

// sharedKey is the key of a store that all processes sign with.
func sharedKey(t *testing.T, data string) []byte {
	t.Helper()
	st := rig.Value(store.Open(t.Context(), store.Config{Dir: data}))
	defer st.Close()
	return rig.Value(st.SharedKey(t.Context()))
}

// TestBackup: what a registry has to keep is written while it runs, and read into another store:
// there the same keys are valid, and a revoked one is not. So it is with a copy of its folder.
func TestBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	create := func() string {
		t.Helper()
		return strings.TrimSpace(mustRun(t, "keys", "create", "--role=harness", "--environment=*", "--data", in("data")))
	}
	server := start(t, "--listen=127.0.0.1:0", "--data", in("data"))
	gone := create()
	mustRun(t, "keys", "revoke", strings.Fields(strings.Split(mustRun(t, "keys", "list", "--data", in("data")), "\n")[1])[0], "--data", in("data"))
	key := create()
	rotated := strings.TrimSpace(mustRun(t, "keys", "rotate", strings.Fields(lineWith(t, mustRun(t, "keys", "list", "--data", in("data")), " valid "))[0], "--data", in("data")))
	mustRun(t, "identities", "add", "agent-1", "--public-key="+strings.Repeat("A", 43)+"=", "--environment=*", "--data", in("data"))
	mustRun(t, "backup", in("backup"), "--data", in("data"))
	server.stop(t)

	rig.Is(t, rig.Value(os.Stat(in("backup"))).Mode(), 0o600, "the mode of the backup")
	text := rig.Value(os.ReadFile(in("backup")))
	rig.Is(t, bytes.Contains(text, []byte(key)) || bytes.Contains(text, []byte(rotated)), false, "a key is in the backup")
	refused(t, "already exists", "backup", in("backup"), "--data", in("data"))
	mustRun(t, "restore", in("backup"), "--data", in("restored"))
	refused(t, "not empty", "restore", in("backup"), "--data", in("restored"))
	rig.Must(t, os.CopyFS(in("copied"), os.DirFS(in("data"))))
	want := sharedKey(t, in("data"))
	for _, there := range []string{"restored", "copied"} {
		rig.Is(t, bytes.Equal(sharedKey(t, in(there)), want), true, "%s: URLs are signed with the same key", there)
		other := start(t, "--listen=127.0.0.1:0", "--data", in(there))
		for text, want := range map[string]int{key: 200, rotated: 200, gone: 401} {
			rig.Is(t, accepted(t, other.url, text), want, "%s: a key is answered", there)
		}
		list := mustRun(t, "identities", "list", "--data", in(there))
		rig.Is(t, strings.Contains(list, "agent-1"), true, "%s: agent-1 is in\n%s", there, list)
		other.stop(t)
	}

	lines := bytes.SplitAfter(text, []byte("\n"))
	for name, wrong := range map[string][]byte{
		"cut short":          bytes.Join(lines[:len(lines)-2], nil),
		"in a line":          text[:len(text)/2],
		"a line is missing":  append(bytes.Clone(lines[0]), bytes.Join(lines[2:], nil)...),
		"more after its end": append(bytes.Clone(text), "{}\n"...),
		"empty":              nil,
		"no backup":          []byte("{}\n"),
		"of a later version": bytes.Replace(text, []byte(`"version":1`), []byte(`"version":2`), 1),
		"another bucket":     bytes.Replace(text, []byte(`"bucket":"keys"`), []byte(`"bucket":"queues"`), 1),
	} {
		rig.Must(t, os.WriteFile(in("wrong"), wrong, 0o600))
		refused(t, "backup", "restore", in("wrong"), "--data", in("untouched"))
		rig.Is(t, rig.Err(os.Lstat(in("untouched"))), fs.ErrNotExist, "%s: the folder", name)
	}
	mustRun(t, "restore", in("backup"), "--data", in("untouched"))
}

// lineWith returns the line that has a text.
func lineWith(t *testing.T, lines, text string) string {
	t.Helper()
	for line := range strings.Lines(lines) {
		if strings.Contains(line, text) {
			return line
		}
	}
	t.Fatalf("no %q in\n%s", text, lines)
	return ""
}
