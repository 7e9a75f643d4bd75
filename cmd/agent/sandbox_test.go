package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestReadPolicy(t *testing.T) {
	t.Parallel()
	const fine = `{"permissions":{"type":"external","network":"restricted"},"windowsSandboxLevel":"disabled"}`
	for _, tt := range []struct {
		name, raw, want string // want is in the error; "": none
	}{
		{"fine", fine, ""},
		{"fine with space around", "\n " + fine + "\n", ""},
		{"nothing", "", "not a JSON value"},
		{"cut short", fine[:40], "not a JSON value"},
		{"out of the frame", fine + `,"id":1`, "not a JSON value"},
		{"a name twice", `{"permissions":{"type":"disabled","type":"disabled"},"windowsSandboxLevel":"disabled"}`, "type"},
		{"a wrong word", strings.Replace(fine, "external", "full", 1), "full"},
		{"too long", fine + strings.Repeat(" ", maxPolicy), "more than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "policy.json")
			rig.Must(t, os.WriteFile(path, []byte(tt.raw), 0o600))
			rig.Says(t, rig.Err(readPolicy(path, nil)), tt.want, "a file")
			rig.Says(t, rig.Err(readPolicy("-", strings.NewReader(tt.raw))), tt.want, "standard input")
		})
	}
	rig.Is(t, rig.Err(readPolicy(filepath.Join(t.TempDir(), "none"), nil)), fs.ErrNotExist, "a file that is not there")
}

// FuzzReadPolicy: whatever a file holds, readPolicy refuses it or returns a policy
// with a type.
func FuzzReadPolicy(f *testing.F) {
	for _, seed := range []string{
		`{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled"}`,
		`{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},` +
			`"access":"read"}]},"network":"enabled"},"windowsSandboxLevel":"disabled","cwd":"file:///a"}`,
		`{}`, `[]`, `{"permissions":null}`, `{},"id":1`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		asked, err := readPolicy("-", strings.NewReader(raw))
		rig.Is(t, err == nil && asked.Permissions.Type == "", false, "%q is a policy without a type", raw)
	})
}
