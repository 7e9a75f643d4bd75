package protocol

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

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
