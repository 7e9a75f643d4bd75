package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// changes notifies of changes, each "kind path" or "renamed path from", as the connection of the
// session does.
func (f *fake) changes(id string, overflow bool, lines ...string) {
	f.t.Helper()
	n := protocol.ChangedNotification{WatchID: id, Changes: []protocol.FileChange{}, Overflow: overflow}
	for _, line := range lines {
		words := strings.Fields(line)
		c := protocol.FileChange{Kind: protocol.ChangeKind(words[0]), Path: protocol.NewPathURI(words[1])}
		if len(words) > 2 {
			c.From = new(protocol.NewPathURI(words[2]))
		}
		n.Changes = append(n.Changes, c)
	}
	f.current().notify(protocol.MethodFSChanged, n)
}

func watch(t *testing.T, c *client.Client, path string) *client.Watch {
	t.Helper()
	w, err := c.FS(nil).Watch(t.Context(), path, true)
	rig.Must(t, err)
	return w
}

// told is what Next gives, as lines, with the overflow or the error last.
func told(t *testing.T, w *client.Watch) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes, err := w.Next(ctx)
	for _, c := range changes.List {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Kind, c.Path, c.From)))
	}
	if changes.Overflow {
		lines = append(lines, "overflow")
	}
	if err != nil {
		lines = append(lines, err.Error())
	}
	return lines
}

func wantTold(t *testing.T, w *client.Watch, want ...string) {
	t.Helper()
	rig.Same(t, "told", want, told(t, w))
}

func TestWatch(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		one, two := watch(t, c, "/one"), watch(t, c, "/two")
		f.changes("w1", false, "created /one/a", "modified /one/b")
		f.changes("w2", true)
		f.changes("w7", false, "created /nobody")
		f.changes("w1", false, "renamed /one/c /one/a")
		synctest.Wait()
		wantTold(t, one, "created /one/a", "modified /one/b", "renamed /one/c /one/a")
		wantTold(t, two, "overflow")

		// A loss: what happened meanwhile is not known.
		f.cut()
		wantTold(t, one, "overflow")
		wantTold(t, two, "overflow")
		f.changes("w1", false, "removed /one/c")
		wantTold(t, one, "removed /one/c")
		rig.Is(t, f.count(protocol.MethodFSWatch), 4, "fs/watch came")

		rig.Must(t, errors.Join(one.Close(), one.Close()))
		wantTold(t, one, "watch /one: file already closed")
		rig.Is(t, f.count(protocol.MethodFSUnwatch), 1, "fs/unwatch came")
		f.cut()
		wantTold(t, two, "overflow")
		rig.Is(t, f.count(protocol.MethodFSWatch), 5, "fs/watch came, and not for a closed watch")
		c.Close()
		rig.Is(t, rig.Err(two.Next(t.Context())), client.ErrClosed, "with a closed client")
	})
}

// TestWatchAsked: a loss while the server has not answered yet is not seen.
func TestWatchAsked(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		f.lose(protocol.MethodFSWatch)
		w := watch(t, c, "/one")
		f.changes("w1", false, "created /one/a")
		wantTold(t, w, "created /one/a")
		rig.Must(t, w.Close())
	})
}

// TestWatchGivenUp: a watch whose answer nobody waits for is ended at the server.
func TestWatchGivenUp(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		f.once(protocol.MethodFSWatch, func(*link, request) any { return silence{} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rig.Is(t, rig.Err(c.FS(nil).Watch(ctx, "/one", false)), context.DeadlineExceeded, "the error")
		synctest.Wait()
		rig.Is(t, f.count(protocol.MethodFSUnwatch), 1, "fs/unwatch came")
	})
}

// TestWatchRefused: what cannot be watched again fails alone.
func TestWatchRefused(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		one, two := watch(t, c, "/one"), watch(t, c, "/two")
		f.on(protocol.MethodFSWatch, func(l *link, r request) any {
			if strings.Contains(string(r.Params), "/one") {
				return protocol.Errorf(protocol.CodeInvalidRequest, "no more")
			}
			return map[string]string{"path": "file:///elsewhere"}
		})
		f.cut()
		wantError[*client.ServerError](t, rig.Err(one.Next(t.Context())), "a refusal")
		wantTold(t, two, "watch /two: since the connection was lost, the path leads elsewhere")
		wants(t, c, client.Connected)
		wantError[*client.ServerError](t, rig.Err(c.FS(nil).Watch(t.Context(), "/one", false)), "a refusal at first")
		rig.Is(t, rig.Err(c.FS(nil).Watch(t.Context(), "one", false)), fs.ErrInvalid, "a relative path")
	})
}

// TestWatchBounds: what nobody takes is bounded, and more of it is an overflow.
func TestWatchBounds(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		w := watch(t, c, "/")
		lines := make([]string, 256)
		for i := range lines {
			lines[i] = fmt.Sprint("created /", i)
		}
		for range 16 {
			f.changes("w1", false, lines...)
		}
		synctest.Wait()
		got := told(t, w)
		rig.Is(t, len(got) == 4096 && got[4095] == "created /255", true, "told %d changes", len(got))
		for range 17 {
			f.changes("w1", false, lines...)
		}
		synctest.Wait()
		wantTold(t, w, "overflow")
		long := "created /" + strings.Repeat("x", 4000)
		for range 300 {
			f.changes("w1", false, long)
		}
		synctest.Wait()
		wantTold(t, w, "overflow")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		rig.Is(t, rig.Err(w.Next(ctx)), context.Canceled, "with an ended context")
	})
}

// TestWatchLies: a server that tells nonsense of a watch is not believed.
func TestWatchLies(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c := f.connect(t)
		w := watch(t, c, "/one")
		f.changes("w1", false, "created /one/a", "created /onee")
		wantError[*client.ProtocolError](t, rig.Err(w.Next(t.Context())), "a path of others")
		wantError[*client.ProtocolError](t, rig.Err(w.Next(t.Context())), "and then")
		for i, params := range []string{
			`{"watchId":"w2","changes":[{"path":"file:///one/a","kind":"lost"}]}`,
			`{"watchId":"w3","changes":[{"path":"file:///one/a","kind":"renamed"}]}`,
			`{"watchId":"w4","changes":[{"path":"file://host/one/a","kind":"created"}]}`,
			`{"watchId":"w5"}`,
		} {
			watch(t, c, "/one")
			before := c.Generation()
			f.current().send([]byte(`{"method":"fs/changed","params":` + params + `}`))
			state, changed := c.State()
			for state == client.Connected && c.Generation() == before {
				select {
				case <-changed:
				case <-time.After(time.Minute):
					t.Fatalf("%d: the connection lives on", i)
				}
				state, changed = c.State()
			}
			synctest.Wait()
		}
	})
}

// TestWatchAgent: the same, of a real agent.
func TestWatchAgent(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		dir := t.TempDir()
		w := watch(t, c, dir)
		rig.Must(t, os.MkdirAll(dir+"/a/b", 0o777))
		rig.Must(t, c.FS(nil).WriteFile(t.Context(), dir+"/a/b/c", nil))
		want := map[string]bool{"created " + w.Path() + "/a": true, "created " + w.Path() + "/a/b": true, "created " + w.Path() + "/a/b/c": true}
		for len(want) > 0 {
			for _, line := range told(t, w) {
				if delete(want, line); !strings.HasPrefix(line, "created ") && !strings.HasPrefix(line, "modified ") {
					t.Fatalf("told %q", line)
				}
			}
		}
		rig.Must(t, w.Close())
	})
}
