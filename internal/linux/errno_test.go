package linux_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/execagent/execagent/internal/linux"
)

// TestErrnoText compares with the table of rpc.md 2.2: the words of musl.
func TestErrnoText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		errno syscall.Errno
		want  string
	}{
		{2, "No such file or directory"},
		{6, "No such device or address"},
		{7, "Argument list too long"},
		{8, "Exec format error"},
		{9, "Bad file descriptor"},
		{13, "Permission denied"},
		{16, "Resource busy"},
		{17, "File exists"},
		{20, "Not a directory"},
		{21, "Is a directory"},
		{22, "Invalid argument"},
		{30, "Read-only file system"},
		{39, "Directory not empty"},
		{40, "Symbolic link loop"},
		{98, "Address in use"},
	} {
		want := fmt.Sprintf("%s (os error %d)", tt.want, int(tt.errno))
		if got := linux.ErrnoText(tt.errno); got != want {
			t.Errorf("ErrnoText(%d) = %q, want %q", int(tt.errno), got, want)
		}
	}
}
