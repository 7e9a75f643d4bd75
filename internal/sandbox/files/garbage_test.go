package files

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// garbageArgv0 begins the argv[0] of a helper that misbehaves; the way follows.
const garbageArgv0 = "garbage-"

// garbage is a helper that somebody has taken over, by what it does with the
// first request. It gives what it answers, with which descriptors, or nil when
// it did all itself.
var garbage = map[string]func(r request) (packet []byte, fds []int){
	"random": func(request) ([]byte, []int) {
		random := rand.New(rand.NewPCG(1, 2))
		for range 100 {
			b := make([]byte, random.IntN(200))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			_ = unix.Sendmsg(serverSocket, b, nil, nil, 0)
		}
		return nil, nil
	},
	"empty":          func(request) ([]byte, []int) { return []byte{}, nil },
	"header cut off": func(r request) ([]byte, []int) { return appendAnswer(nil, r.id, statusDone)[:4], nil },
	"wrong number":   func(r request) ([]byte, []int) { return stat(r.id + maxInFlight), nil },
	"free number":    func(r request) ([]byte, []int) { return stat(r.id + 1), nil },
	"ready again":    func(request) ([]byte, []int) { return encodeReady([]string{"x"}), nil },
	"refused late": func(request) ([]byte, []int) {
		return pack.AppendString(appendAnswer(nil, 0, statusRefused), "no"), nil
	},
	"cut off":         func(r request) ([]byte, []int) { return stat(r.id)[:10], nil },
	"too long":        func(r request) ([]byte, []int) { return append(stat(r.id), make([]byte, maxPacket)...), nil },
	"with a file":     func(r request) ([]byte, []int) { return stat(r.id), []int{open("/etc/passwd", 0)} },
	"with many files": func(r request) ([]byte, []int) { return stat(r.id), make([]int, 200) },
	"exit": func(request) ([]byte, []int) {
		fmt.Fprintln(os.Stderr, "giving up")
		os.Exit(3)
		return nil, nil
	},
	"panic": func(request) ([]byte, []int) { panic("broken") },
	"close": func(request) ([]byte, []int) {
		unix.Close(0)
		unix.Close(1)
		time.Sleep(time.Minute)
		return nil, nil
	},
	"ignore":       func(request) ([]byte, []int) { return nil, nil },
	"no file":      func(r request) ([]byte, []int) { return appendAnswer(nil, r.id, statusDone), nil },
	"two files":    opened(func() []int { return []int{open("/etc/passwd", 0), open("/etc/group", 0)} }),
	"a directory":  opened(func() []int { return []int{open("/", 0)} }),
	"a device":     opened(func() []int { return []int{open("/dev/null", 0)} }),
	"a pipe":       opened(func() []int { var p [2]int; _ = unix.Pipe(p[:]); return p[:1] }),
	"a socket":     opened(func() []int { return []int{serverSocket} }),
	"a path":       opened(func() []int { return []int{open("/etc/passwd", unix.O_PATH)} }),
	"for writing":  opened(func() []int { return []int{open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR)} }),
	"waiting":      opened(func() []int { return []int{open("/etc/passwd", 0)} }),
	"the kernel":   opened(func() []int { return []int{open("/proc/self/comm", unix.O_WRONLY|unix.O_NONBLOCK)} }),
	"to append to": opened(func() []int { return []int{open(os.TempDir(), unix.O_TMPFILE|unix.O_WRONLY|unix.O_APPEND)} }),
	"endless": func(r request) ([]byte, []int) {
		packet := append(appendAnswer(nil, r.id, statusMore), 0)
		for range 1000 {
			packet = walkItem{path: "/w/a", kind: kindFile}.append(packet)
		}
		for unix.Sendmsg(serverSocket, packet, nil, nil, 0) == nil {
		}
		return nil, nil
	},
}

func stat(id uint32) []byte {
	return appendMetadata(appendAnswer(nil, id, statusDone), fsops.Metadata{IsFile: true})
}

func opened(files func() []int) func(request) ([]byte, []int) {
	return func(r request) ([]byte, []int) { return appendAnswer(nil, r.id, statusDone), files() }
}

func open(path string, flags int) int {
	fd, err := unix.Open(path, flags, 0o600)
	if err != nil {
		panic(err)
	}
	return fd
}

// garbageMain is the main of a helper that misbehaves. A way that is not in
// the table: "silent" is never ready, "chatty" answers well and says too much.
func garbageMain(way string) int {
	if way == "silent" {
		time.Sleep(time.Minute)
	}
	s := server{socket: serverSocket}
	_ = s.send(encodeReady([]string{seccompLayer}))
	buf := make([]byte, maxRequest)
	for first := true; ; first = false {
		n, err := receive(serverSocket, buf)
		if err != nil || n == 0 {
			return 0
		}
		r, err := decodeRequest(buf[:n])
		switch {
		case err != nil:
			return 1
		case way == "chatty":
			for range 1000 {
				fmt.Fprintln(os.Stderr, strings.Repeat("x", 5000))
			}
			_ = s.send(stat(r.id))
		case first:
			packet, fds := garbage[way](r)
			switch {
			case fds != nil:
				_ = unix.Sendmsg(serverSocket, packet, unix.UnixRights(fds...), nil, 0)
			case packet != nil:
				_ = unix.Sendmsg(serverSocket, packet, nil, nil, 0)
			}
		}
	}
}

// TestGarbage: whatever a helper does, its own requests fail and nothing else.
func TestGarbage(t *testing.T) {
	dir := t.TempDir()
	policy := workspace(t, dir)
	read := func(ctx context.Context, f *FS) error {
		fd, err := f.OpenRead(ctx, dir+"/x", fsops.FollowLinks)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	write := func(ctx context.Context, f *FS) error {
		fd, err := f.OpenWrite(ctx, dir+"/x", fsops.Writing{})
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	status := func(ctx context.Context, f *FS) error {
		return rig.Err(f.Stat(ctx, dir, fsops.FollowLinks))
	}
	walk := func(ctx context.Context, f *FS) error {
		return rig.Err(f.Walk(ctx, dir, fsops.WalkOptions{MaxDepth: 1, MaxDirectories: 1, MaxEntries: 1}))
	}
	tests := []struct {
		way  string
		ask  func(context.Context, *FS) error
		want string // in the error
	}{
		{"silent", status, "was not ready after"},
		{"random", status, "malformed packet"},
		{"empty", status, "the helper has ended: signal 9"},
		{"header cut off", status, "answer of 4 bytes"},
		{"wrong number", status, "which was not asked"},
		{"free number", status, "which was not asked"},
		{"ready again", status, "which was not asked"},
		{"refused late", status, "which was not asked"},
		{"cut off", status, "malformed packet"},
		{"too long", status, "packet with flags"},
		{"with a file", status, "descriptor"},
		{"with many files", status, "packet with flags"},
		{"exit", status, "the helper has ended: exit status 3"},
		{"panic", status, "the helper has ended: exit status 2"},
		{"close", status, "the helper has ended: signal 9"},
		{"ignore", status, "has not answered a ping"},
		{"no file", read, "descriptor"},
		{"two files", read, "2 descriptors"},
		{"a directory", read, "file type 040000"},
		{"a device", read, "file type 020000"},
		{"a pipe", read, "file type 010000"},
		{"a socket", read, "file type 0140000"},
		{"a path", read, "with flags"},
		{"for writing", read, "with flags"},
		{"to append to", read, "with flags"},
		{"waiting", read, "with flags"},
		{"the kernel", write, "on file system 0x9fa0"},
		{"endless", walk, "a walk of more than"},
	}
	before := openDescriptors(t)
	for _, tt := range tests {
		t.Run(tt.way, func(t *testing.T) {
			config := Config{Argv0: garbageArgv0 + tt.way, Quiet: 100 * time.Millisecond, Hang: sandboxtest.Enough}
			switch tt.way {
			case "silent":
				config.start = 100 * time.Millisecond
			case "ignore":
				config.Hang, config.start = 100*time.Millisecond, sandboxtest.Enough
			}
			children := &children{}
			pool := NewPool(children.config(config))
			defer pool.Close()
			for range 2 { // the second has another helper
				f := rig.Value(pool.Files(t.Context(), policy))
				err := tt.ask(t.Context(), f)
				wantHelperError(t, err, tt.want)
			}
			pool.Close()
			children.check(t, 2)
		})
	}
	rig.Is(t, openDescriptors(t), before, "descriptors that are open afterwards")
}

// TestLogIsBounded: a helper that says much gets its requests served and most
// of what it says left out.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log bytes.Buffer
	begun := time.Now()
	pool := NewPool(Config{
		Argv0: garbageArgv0 + "chatty",
		Log:   slog.New(slog.NewTextHandler(&log, nil)),
	})
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	rig.Check(t, rig.Err(f.Stat(t.Context(), dir, fsops.FollowLinks)))
	pool.Close()
	said := strings.Count(log.String(), "xxxx ") + strings.Count(log.String(), "xxxx\n")
	most := maxLogLines + int(time.Since(begun)/logInterval) // some are granted meanwhile
	if said == 0 || said > most || log.Len() > 2*most*maxLogLine {
		t.Errorf("logged %d lines in %d bytes", said, log.Len())
	}
	rig.Is(t, strings.Contains(log.String(), "more than is logged"), true, "the log tells that something is missing")
}

// FuzzPackets reads whatever bytes a helper sends as its packets.
func FuzzPackets(f *testing.F) {
	f.Add(encodeReady([]string{"a"}), stat(1<<slotBits))
	f.Add(encodeReady([]string{"a"}), appendError(nil, 1<<slotBits, io.EOF))
	f.Add(stat(0), stat(0))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		w := &worker{
			free: 1<<maxInFlight - 1, slots: make(chan struct{}, maxInFlight),
			ready: make(chan struct{}), over: make(chan struct{}),
		}
		if err := w.handle(first, -1); err != nil {
			return
		}
		c := &call{request: request{id: 1 << slotBits, op: opStat}, result: result{fd: -1}, done: make(chan struct{})}
		w.slots <- struct{}{}
		w.calls[0], w.free = c, w.free&^1
		err := w.handle(second, -1)
		select {
		case <-c.done:
			rig.Is(t, fmt.Sprint(err, w.calls[0], len(w.slots)), "<nil> <nil> 0", "answered: error, call, slots taken")
		default:
			rig.Is(t, len(w.slots), 1, "not answered, and its slot is free")
		}
	})
}
