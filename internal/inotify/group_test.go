package inotify

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// heard is a subscriber that remembers names.
type heard struct {
	mu    sync.Mutex
	names []string
	came  chan struct{} // has room for what a test makes happen
}

func (h *heard) Notice(e Event) {
	h.mu.Lock()
	h.names = append(h.names, e.Name)
	h.mu.Unlock()
	h.came <- struct{}{}
}

// TestAddHearsNothingOld: who watches a directory that others watch already is told nothing
// that happened before.
func TestAddHearsNothingOld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var g Group
	defer g.Close()
	first := &heard{came: make(chan struct{}, 1000)}
	rig.Must(t, rig.Err(g.Add(dir, unix.IN_CREATE, first)))
	for range 200 {
		old, fresh := filepath.Join(dir, "old"), filepath.Join(dir, "new")
		rig.Must(t, os.WriteFile(old, nil, 0o600))
		h := &heard{came: make(chan struct{}, 10)}
		wd, err := g.Add(dir, unix.IN_CREATE, h)
		rig.Must(t, err)
		rig.Must(t, os.WriteFile(fresh, nil, 0o600))
		rig.Within(t, time.Minute, "the event", h.came)
		h.mu.Lock()
		told := h.names[0]
		h.mu.Unlock()
		rig.Is(t, told, "new", "told of")
		g.Remove(wd, h)
		rig.Must(t, os.Remove(old), os.Remove(fresh))
	}
	g.Close()
	rig.Is(t, len(first.names), 400, "events that the first subscriber was told")
	rig.Is(t, rig.Err(g.Add(dir, unix.IN_CREATE, first)), os.ErrClosed, "Add after Close")
}
