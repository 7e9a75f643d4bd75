//go:build unix

package threadlog_test

import (
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"

	"github.com/execagent/execagent/harness/threadlog"
)

// full appends to a thread until its file may not grow, as on a disk that is full, and then what
// has room.
func full(dir, id string) error {
	s, err := threadlog.OpenStore(dir)
	if err != nil {
		return err
	}
	t, err := s.Open(id)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	limit := syscall.Rlimit{Cur: 10_000, Max: 10_000}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := t.Append("note", strings.Repeat("x", 20_000)); !errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("a record that has no room: %w", err)
	}
	if err := t.Append("note", "small"); err != nil {
		return err
	}
	return t.Close()
}
