package fsops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func unknown(t *testing.T, err error, id string) {
	t.Helper()
	if e, ok := errors.AsType[fsops.UnknownHandleError](err); !ok || e.ID != id {
		t.Errorf("error %v, want that handle %q is unknown", err, id)
	} else if !strings.Contains(err.Error(), strconv.Quote(id)) {
		t.Errorf("error %q does not name handle %q", err, id)
	}
}

// openHandle opens path under id as the agent does without a policy.
func openHandle(h *fsops.Handles, id, path string, mode fsops.Mode) error {
	return h.Open(id, mode, func() (int, error) {
		if mode == fsops.ModeReplace {
			return host.OpenWrite(context.Background(), path, fsops.Writing{})
		}
		return host.OpenRead(context.Background(), path, fsops.FollowLinks)
	})
}

func TestHandlesOpen(t *testing.T) {
	t.Parallel()
	root := tree(t, standard...)
	tests := []struct {
		path string
		mode fsops.Mode
		err  error
	}{
		{path: "d/a.txt"},
		{path: "d/link"},
		{path: "/proc/version"},
		{path: "d", err: invalid},
		// Before the fifo is opened for reading: a child of another test may keep that descriptor for a moment.
		{path: "d/ff", mode: fsops.ModeReplace, err: unix.ENXIO},
		{path: "d/ff", err: invalid},
		{path: "/dev/null", err: invalid},
		{path: "nope", err: unix.ENOENT},
		{path: "d/loop", err: unix.ELOOP},
		{path: "d/new", mode: fsops.ModeReplace},
		{path: "d/dang", mode: fsops.ModeReplace},
		{path: "d", mode: fsops.ModeReplace, err: unix.EISDIR},
		{path: "nope/x", mode: fsops.ModeReplace, err: unix.ENOENT},
		{path: "/dev/null", mode: fsops.ModeReplace, err: invalid},
	}
	var h fsops.Handles
	defer h.CloseAll()
	for i, tt := range tests {
		path := at(root, tt.path)
		id := strconv.Itoa(i)
		checkErr(t, openHandle(&h, id, path, tt.mode), tt.err)
		if err := h.WriteBlock(id, 0, []byte("x")); tt.err != nil {
			unknown(t, err, id)
		}
	}
	// A fifo with a reader can be opened, and is refused then.
	r := rig.Value(os.OpenFile(filepath.Join(root, "d/ff"), os.O_RDONLY|unix.O_NONBLOCK, 0))
	defer r.Close()
	checkErr(t, openHandle(&h, "ff", filepath.Join(root, "d/ff"), fsops.ModeReplace), invalid)
}

// The id is checked before the number of handles, both before the path.
func TestHandlesIDs(t *testing.T) {
	t.Parallel()
	var h fsops.Handles
	defer h.CloseAll()
	path := filepath.Join(tree(t, "f =x"), "f")
	const missing = "/nope/nope"
	long := strings.Repeat("é", 16) + "x"
	for name, err := range map[string]error{
		"Open":       openHandle(&h, long, missing, fsops.ModeRead),
		"WriteBlock": h.WriteBlock(long, 0, nil),
		"Close":      h.Close(long),
	} {
		checkErr(t, err, invalid)
		rig.Is(t, strings.Contains(err.Error(), "33"), true, "%s: %v tells the length", name, err)
	}
	_, _, err := h.ReadBlock(long, 0, 0, nil)
	checkErr(t, err, invalid)

	checkErr(t, openHandle(&h, "", path, fsops.ModeRead), nil)
	checkErr(t, openHandle(&h, "", missing, fsops.ModeRead), invalid)
	checkErr(t, h.Close("never"), nil)
	_, _, err = h.ReadBlock("never", 0, 1, nil)
	unknown(t, err, "never")
	unknown(t, h.WriteBlock("never", 0, []byte("x")), "never")

	for i := 1; i < fsops.MaxHandles; i++ {
		checkErr(t, openHandle(&h, strconv.Itoa(i), path, fsops.Mode(i%2)), nil)
	}
	checkErr(t, openHandle(&h, "129", missing, fsops.ModeRead), invalid)
	checkErr(t, h.Close(""), nil)
	checkErr(t, openHandle(&h, "129", missing, fsops.ModeRead), unix.ENOENT)
	checkErr(t, openHandle(&h, "129", path, fsops.ModeRead), nil)
	checkErr(t, openHandle(&h, "130", path, fsops.ModeRead), invalid)
	h.CloseAll()
	checkErr(t, openHandle(&h, "131", path, fsops.ModeRead), fs.ErrClosed)
	_, _, err = h.ReadBlock("129", 0, 1, nil)
	unknown(t, err, "129")
}

func TestReadBlock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(tree(t, "f =hello"), "f")
	for _, tt := range []struct {
		name           string
		offset, length uint64
		want           string
		eof            bool
		err            error
		closes         bool
	}{
		{name: "exactly to the end", length: 5, want: "hello"},
		{name: "at the end", offset: 5, length: 1, eof: true},
		{name: "far", offset: 1 << 40, length: 1, eof: true},
		{name: "longest", length: fsops.MaxBlockLength, want: "hello", eof: true},
		{name: "far too long", length: math.MaxUint64, err: invalid},
		{name: "offset 2^63", offset: 1 << 63, length: 1, err: unix.EINVAL, closes: true},
		{name: "end over 2^63-1", offset: math.MaxInt64, length: 5, err: unix.EINVAL, closes: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h fsops.Handles
			defer h.CloseAll()
			checkErr(t, openHandle(&h, "h", path, fsops.ModeRead), nil)
			got, eof, err := h.ReadBlock("h", tt.offset, tt.length, nil)
			checkErr(t, err, tt.err)
			rig.Is(t, fmt.Sprintf("%q, eof %v", got, eof), fmt.Sprintf("%q, eof %v", tt.want, tt.eof), "the block")
			_, _, err = h.ReadBlock("h", 0, 1, nil)
			if tt.closes {
				unknown(t, err, "h")
			} else {
				checkErr(t, err, nil)
			}
		})
	}
}

func TestWriteBlock(t *testing.T) {
	t.Parallel()
	root := tree(t, "old =old text", "r =read only")
	path := filepath.Join(root, "old")
	var h fsops.Handles
	defer h.CloseAll()
	checkErr(t, openHandle(&h, "w", path, fsops.ModeReplace), nil)
	rig.Is(t, rig.Value(os.Stat(path)).Size(), 0, "bytes after open")
	checkErr(t, h.WriteBlock("w", 0, []byte("hello")), nil)
	checkErr(t, h.WriteBlock("w", 7, []byte("gap")), nil)
	for _, bad := range []struct {
		offset uint64
		block  []byte
		err    error
	}{
		{block: nil, err: invalid},
		{block: make([]byte, fsops.MaxBlockLength+1), err: invalid},
		{offset: math.MaxInt64, block: []byte("x"), err: invalid},
		{offset: math.MaxInt64 - 1, block: []byte("xy"), err: invalid},
		{offset: math.MaxUint64, block: []byte("x"), err: invalid},
	} {
		checkErr(t, h.WriteBlock("w", bad.offset, bad.block), bad.err)
	}
	checkErr(t, h.WriteBlock("w", 1, []byte("E")), nil)
	checkErr(t, h.WriteBlock("w", 10, make([]byte, fsops.MaxBlockLength)), nil)
	checkErr(t, h.Close("w"), nil)
	want := append([]byte("hEllo\x00\x00gap"), make([]byte, fsops.MaxBlockLength)...)
	rig.Is(t, bytes.Equal(rig.Value(os.ReadFile(path)), want), true, "the file has the %d bytes", len(want))

	// With a handle of the wrong kind: a read closes it, a write does not.
	checkErr(t, openHandle(&h, "r", filepath.Join(root, "r"), fsops.ModeRead), nil)
	checkErr(t, h.WriteBlock("r", 0, []byte("x")), unix.EBADF)
	_, _, err := h.ReadBlock("r", 0, 1, nil)
	checkErr(t, err, nil)
	checkErr(t, openHandle(&h, "w", path, fsops.ModeReplace), nil)
	_, _, err = h.ReadBlock("w", 0, 1, nil)
	checkErr(t, err, unix.EBADF)
	unknown(t, h.WriteBlock("w", 0, []byte("x")), "w")
}

// TestHandlesConcurrent: reads of one handle run at once, and it is closed
// meanwhile. Each read gives the right bytes or finds the handle unknown.
func TestHandlesConcurrent(t *testing.T) {
	t.Parallel()
	root := tree(t, "a")
	data := bytes.Repeat([]byte("a"), 256<<10)
	path, other := filepath.Join(root, "a"), filepath.Join(root, "b")
	for p, b := range map[string][]byte{path: data, other: bytes.ToUpper(data)} {
		rig.Must(t, os.WriteFile(p, b, 0o600))
	}
	var h fsops.Handles
	defer h.CloseAll()
	for range 30 {
		checkErr(t, openHandle(&h, "h", path, fsops.ModeRead), nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					got, _, err := h.ReadBlock("h", 0, uint64(len(data)), nil)
					if err != nil {
						unknown(t, err, "h")
						return
					}
					if !bytes.Equal(got, data) {
						t.Error("bytes of another file")
						return
					}
				}
			})
		}
		wg.Go(func() {
			checkErr(t, h.Close("h"), nil)
			// The number of the descriptor is in use again at once.
			checkErr(t, openHandle(&h, "other", other, fsops.ModeRead), nil)
		})
		wg.Wait()
		checkErr(t, h.Close("other"), nil)
	}
}
