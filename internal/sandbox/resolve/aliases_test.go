package resolve

import (
	"fmt"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestAliases(t *testing.T) {
	t.Parallel()
	mounts, err := parseMounts([]byte(`1 0 8:1 / / rw - ext4 /dev/a rw
2 1 8:1 /home /alias rw - ext4 /dev/a rw
3 1 8:1 /home/u/own/in /in\040side rw - ext4 /dev/a rw
4 1 8:1 /etc /other rw - ext4 /dev/a rw
5 1 8:2 /home /second rw - ext4 /dev/b rw
6 1 8:2 /x /home/u/m rw - ext4 /dev/b rw
7 1 8:2 / /all rw - ext4 /dev/b rw
`))
	rig.Must(t, err)
	tests := []struct {
		name string
		id   uint64
		want []string
	}{
		{"/home/u/own", 1, []string{"/alias/u/own", "/in side"}},
		{"/alias/u/own", 2, []string{"/home/u/own", "/in side"}},
		{"/home", 1, []string{"/alias", "/in side"}},
		{"/home/u/m/own", 6, []string{"/all/x/own"}},
		{"/home/u/m", 6, []string{"/all/x"}},
		{"/var", 1, nil},
		{"/var", 99, nil},
	}
	for _, tt := range tests {
		rig.Same(t, fmt.Sprintf("%s in mount %d", tt.name, tt.id), tt.want, aliases(mounts, tt.name, tt.id))
	}
}
