package protocol

import (
	"cmp"
	"encoding/json"
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

func TestSandboxRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, path string
		value      any
		fails      string // the member that the error names, path when empty
	}{
		{"legacy word", "permissions", "read-only", ""},
		{"legacy type", "permissions", map[string]any{"type": "read-only"}, "permissions.type"},
		{"legacy policy", "permissions", map[string]any{"sandboxPolicy": map[string]any{}}, "permissions.type"},
		{"camel case", "permissions", map[string]any{"type": "managed", "fileSystem": map[string]any{"type": "unrestricted"}, "network": "enabled"}, "permissions.file_system"},
		{"external without network", "permissions", map[string]any{"type": "external"}, "permissions.network"},
		{"managed without network", "permissions", map[string]any{"type": "managed", "file_system": map[string]any{"type": "unrestricted"}}, "permissions.network"},
		{"restricted without entries", "permissions.file_system", map[string]any{"type": "restricted"}, "permissions.file_system.entries"},
		{"glob depth 0", "permissions.file_system.glob_scan_max_depth", 0, ""},
		{"native cwd", "cwd", "/w", ""},
		{"native root", "workspaceRoots.0", "/w", ""},
		{"native cwd of the context", "policyContext.cwd", "w", ""},
		{"native root of the context", "policyContext.workspaceRoots.1", "w", ""},
		{"native home", "userHomeDir", "/h", ""},
		{"native temporary directory", "temporaryDirectories.0", "/t", ""},
		{"native entry", "permissions.file_system.entries.0.path.path", "/srv", ""},
		{"other scheme", "permissions.file_system.entries.0.path.path", "http://h/", ""},
	}
	r := recordOf(t, "sandbox")
	for _, tt := range tests {
		doc := example(t, r.full)
		change(t, doc, tt.path, set(tt.value))
		mustFail(t, r, doc, tt.name, cmp.Or(tt.fails, tt.path))
	}
}

func TestSandboxAccepts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in string }{
		{"disabled", `{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled"}`},
		{"disabled ignores the rest", `{"permissions":{"type":"disabled","file_system":5,"network":6},"windowsSandboxLevel":"mxc"}`},
		{"external", `{"permissions":{"type":"external","network":"enabled","file_system":5},"windowsSandboxLevel":"elevated"}`},
		{"unrestricted", `{"permissions":{"type":"managed","file_system":{"type":"unrestricted","entries":5},"network":"restricted"},"windowsSandboxLevel":"disabled"}`},
		{"no entries", `{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[]},"network":"restricted"},"windowsSandboxLevel":"disabled"}`},
		{"subpath where it has no meaning", `{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[
			{"path":{"type":"special","value":{"kind":"root","subpath":5}},"access":"read"}]},"network":"enabled"},"windowsSandboxLevel":"disabled"}`},
		{"foreign path", `{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled","cwd":"file://host/x"}`},
	} {
		rig.Is(t, unmarshal(t, new(Sandbox), json.RawMessage(tt.in)), nil, "%s", tt.name)
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
