package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/sandbox"
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
		{"two values", fine + fine, "not a JSON value"},
		{"out of the frame", fine + `,"id":1`, "not a JSON value"},
		{"no object", `"read-only"`, "expected an object"},
		{"a name twice", `{"permissions":{"type":"disabled","type":"disabled"},"windowsSandboxLevel":"disabled"}`, "type"},
		{"a member missing", `{"permissions":{"type":"disabled"}}`, "windowsSandboxLevel"},
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

func TestSandboxProfile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sys := program.System{Environ: []string{"TMPDIR=relative", "TMPDIR=" + dir + "/tmp/"}}
	confined := func(f policy.Flags) sandboxFlags { return sandboxFlags{confineFlags: confineFlags{Flags: f}} }
	access := func(t *testing.T, flags sandboxFlags, path string) sandbox.Access {
		t.Helper()
		plan := rig.Value(flags.plan(sys, dir))
		return rig.Value(plan.Profile.Compile()).Access(path)
	}
	workspace := confined(policy.Flags{Workspace: []string{dir}})
	for _, tt := range []struct {
		name  string
		flags sandboxFlags
		path  string
		want  sandbox.Access
	}{
		{"nothing said", sandboxFlags{}, dir, sandbox.Read},
		{"read-only", confined(policy.Flags{ReadOnly: true}), "/tmp", sandbox.Read},
		{"workspace", workspace, dir + "/file", sandbox.Write},
		{"workspace: protected", workspace, dir + "/.git", sandbox.Read},
		{"workspace: elsewhere", workspace, "/etc", sandbox.Read},
		{"workspace: /tmp", workspace, "/tmp/file", sandbox.Write},
		{"workspace: TMPDIR", workspace, dir + "/tmp/file", sandbox.Write},
	} {
		rig.Is(t, access(t, tt.flags, tt.path), tt.want, "%s: access to %s", tt.name, tt.path)
	}
	for network, want := range map[string]sandbox.Network{
		"": sandbox.NetworkRestricted, "off": sandbox.NetworkRestricted, "on": sandbox.NetworkEnabled,
	} {
		flags := sandboxFlags{confineFlags: confineFlags{Network: []string{network}}, Command: []string{"true"}}
		rig.Must(t, flags.Check())
		plan := rig.Value(flags.plan(sys, dir))
		rig.Is(t, plan.Profile.Network, want, "--network %q", network)
	}
	missing := confined(policy.Flags{Workspace: []string{dir + "/none"}})
	rig.Is(t, rig.Err(missing.plan(sys, dir)) != nil, true, "a workspace that is not there is refused")
}
