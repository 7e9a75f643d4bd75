package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSandboxWords: all words of sandbox.md 2 and 3 are taken, and the refusal of
// another word lists them.
func TestSandboxWords(t *testing.T) {
	t.Parallel()
	const entry = "permissions.file_system.entries.0."
	tests := []struct {
		path  string
		words []string
		// others are members that a word needs and the example does not have.
		others map[string]string
	}{
		{"windowsSandboxLevel", []string{"disabled", "restricted-token", "elevated", "mxc"}, nil},
		{"windowsSandboxProxySettingsMode", []string{"reconcile", "preserve"}, nil},
		{"permissions.type", []string{"managed", "disabled", "external"}, nil},
		{"permissions.network", []string{"restricted", "enabled"}, nil},
		{"permissions.file_system.type", []string{"restricted", "unrestricted"}, nil},
		{entry + "access", []string{"read", "write", "deny", "none"}, nil},
		{entry + "missing_path_behavior", []string{"skip"}, nil},
		{entry + "path.type", []string{"path", "glob_pattern", "special"}, map[string]string{"glob_pattern": "pattern", "special": "value"}},
		{"permissions.file_system.entries.2.path.value.kind",
			[]string{"root", "minimal", "current_working_directory", "project_roots", "tmpdir", "slash_tmp", "unknown"},
			map[string]string{"unknown": "path"}},
	}
	r := recordOf(t, "sandbox")
	for _, tt := range tests {
		parent := tt.path[:strings.LastIndexByte(tt.path, '.')+1]
		for _, word := range tt.words {
			doc := example(t, r.full)
			change(t, doc, tt.path, set(word))
			if missing := tt.others[word]; missing != "" {
				mustFail(t, r, doc, word+" alone", parent+missing)
			} else {
				mustPass(t, r, doc, word, tt.path)
			}
		}
		for _, word := range []string{"", "x", strings.ToUpper(tt.words[0]), tt.words[0] + " "} {
			doc := example(t, r.full)
			change(t, doc, tt.path, set(word))
			mustFail(t, r, doc, word, tt.path)
			err, want := unmarshal(t, new(Sandbox), doc), "expected one of `"+strings.Join(tt.words, "`, `")+"`"
			rig.Is(t, strings.Contains(fmt.Sprint(err), want), true, "%s %q: %v has %s", tt.path, word, err, want)
		}
	}
}

// TestSandboxNamed: sockets and devices are words of ours, which the refusal of another word does not list,
// and need the access write.
func TestSandboxNamed(t *testing.T) {
	t.Parallel()
	const entry = "permissions.file_system.entries.0."
	r := recordOf(t, "sandbox")
	for _, word := range []string{"unix_socket", "device"} {
		doc := example(t, r.full)
		change(t, doc, entry+"path.type", set(word))
		mustFail(t, r, doc, word+" to be read", entry+"access")
		change(t, doc, entry+"access", set("write"))
		mustPass(t, r, doc, word, entry+"path.type")
	}
}

func TestUnrestrictedFiles(t *testing.T) {
	t.Parallel()
	restricted := &FileSystemRules{Type: FileSystemRestricted}
	unrestricted := &FileSystemRules{Type: FileSystemUnrestricted}
	for _, tt := range []struct {
		level string
		in    Permissions
		want  bool
	}{
		{"disabled", Permissions{Type: PermissionsDisabled}, true},
		{"restricted-token", Permissions{Type: PermissionsDisabled}, true},
		{"mxc", Permissions{Type: PermissionsDisabled}, false},
		{"disabled", Permissions{Type: PermissionsExternal, Network: NetworkEnabled}, true},
		{"disabled", Permissions{Type: PermissionsExternal, Network: NetworkRestricted}, true},
		{"disabled", Permissions{PermissionsManaged, unrestricted, NetworkEnabled}, true},
		{"disabled", Permissions{PermissionsManaged, unrestricted, NetworkRestricted}, true},
		{"disabled", Permissions{PermissionsManaged, restricted, NetworkEnabled}, false},
		{"disabled", Permissions{PermissionsManaged, restricted, NetworkRestricted}, false},
	} {
		s := &Sandbox{Permissions: tt.in, WindowsSandboxLevel: tt.level}
		rig.Is(t, s.UnrestrictedFiles(), tt.want, "%s, %+v", tt.level, tt.in)
	}
}
