package files

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/pack"
)

const (
	// idleReaders is how many goroutines of the helper wait for requests. Each
	// waits in the kernel, works, answers and waits again, so that a request
	// costs no switch between threads. There is always one that waits while
	// others work.
	idleReaders = 2
	// gcPercent keeps the heap at a mebibyte, which is enough for a thousand
	// requests.
	gcPercent = 25
	// largeAnswer is an answer, in bytes, after which the helper gives memory back, once
	// none has followed for as long as calm: to give it back and to take it again costs as
	// much as half of such an answer.
	largeAnswer = 256 << 10
	calm        = time.Second
)

// server is the helper's end: it does what the requests ask for.
type server struct {
	socket int
	view   *fsops.View

	mu      sync.Mutex
	waiting int // readers that have no request
	tasks   [maxInFlight]task
	// thrift gives memory back, when calm has passed since it was set. nil: never set. A
	// timer costs the runtime two descriptors, and most helpers need none.
	thrift *time.Timer
}

// task is the request in a slot that looks at its context.
type task struct {
	id       uint32
	cancel   context.CancelFunc
	canceled uint32 // the number that was last canceled: it may come first
}

// serve answers requests until the agent has gone, and returns the exit status.
func (s *server) serve() int {
	over := make(chan error)
	s.waiting = idleReaders
	for range idleReaders {
		go s.read(over)
	}
	// What is under way ends with the process.
	if err := <-over; err != nil {
		fmt.Fprintln(os.Stderr, "serving file requests:", err)
		return 1
	}
	return 0
}

// read is one reader.
func (s *server) read(over chan<- error) {
	buf := make([]byte, maxRequest+1)
	for {
		n, err := receive(s.socket, buf)
		if err != nil || n == 0 {
			over <- err
			return
		}
		r, err := decodeRequest(buf[:n])
		if err != nil {
			over <- err
			return
		}
		s.begin(over)
		if err := s.answer(&r); err != nil {
			over <- err
			return
		}
		if !s.end() {
			return
		}
	}
}

// begin takes a reader to work, and makes another when none is left that
// waits. The agent bounds the requests, and so the readers.
func (s *server) begin(over chan<- error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting--; s.waiting == 0 {
		s.waiting++
		go s.read(over)
	}
}

// end tells a reader whether it is to wait again.
func (s *server) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == idleReaders {
		return false
	}
	s.waiting++
	return true
}

// answer does what r asks for and sends what comes of it. An error is one of
// the connection.
func (s *server) answer(r *request) error {
	ctx, done := s.task(r)
	defer done()
	a := reply{server: s, id: r.id, fd: -1}
	a.packet = appendAnswer(make([]byte, 0, 256), r.id, statusDone)
	var err error
	switch r.op {
	case opPing:
		return s.send(appendAnswer(nil, 0, statusPong))
	case opCancel:
		s.cancel(r.id)
		return nil
	case opOpenRead:
		a.fd, err = s.view.OpenRead(ctx, r.path, r.links)
	case opOpenWrite:
		a.fd, err = s.view.OpenWrite(ctx, r.path, r.links)
	case opCreateDirectory:
		err = s.view.CreateDirectory(ctx, r.path, r.recursive, r.links)
	case opStat:
		var m fsops.Metadata
		if m, err = s.view.Stat(ctx, r.path, r.links); err == nil {
			a.packet = appendMetadata(a.packet, m)
		}
	case opCanonicalize:
		var path string
		if path, err = s.view.Canonicalize(ctx, r.path); err == nil {
			a.packet = pack.AppendString(a.packet, clip(path, maxText))
		}
	case opReadDirectory:
		err = a.list(s.view.ReadDirectory(ctx, r.path))
	case opWalk:
		err = a.walk(ctx, r)
	case opDiscover:
		err = a.discover(ctx, r.path)
	case opRemove:
		err = s.view.Remove(ctx, r.path, r.recursive, r.force, r.links)
	case opCopy:
		err = s.view.Copy(ctx, r.path, r.to, r.recursive)
	case opRename:
		err = s.view.Rename(ctx, r.path, r.to, r.force)
	default: // decodeRequest knows it, and nothing does it
		err = unix.ENOSYS
	}
	return a.finish(err)
}

// task gives a request that looks at it a context that cancel ends.
func (s *server) task(r *request) (context.Context, func()) {
	if !r.op.cancellable() {
		return context.Background(), func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tasks[r.id%maxInFlight]
	t.id, t.cancel = r.id, cancel
	if t.canceled == r.id {
		cancel()
	}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		t.cancel = nil
	}
}

// cancel ends a task. Another reader may not have come to it yet.
func (s *server) cancel(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tasks[id%maxInFlight]
	t.canceled = id
	if t.id == id && t.cancel != nil {
		t.cancel()
	}
}

// reply is one on its way. It is sent in packets.
type reply struct {
	server *server
	id     uint32
	packet []byte // of which something is still missing
	fd     int    // goes with the last packet, if not -1
	sent   int    // bytes of the packets before
	err    error  // of the connection
}

// finish sends the last packet, or what err says instead of it.
func (a *reply) finish(err error) error {
	if a.err != nil {
		return a.err
	}
	if err != nil {
		return a.server.send(appendError(a.packet[:0], a.id, err))
	}
	if a.fd >= 0 {
		defer unix.Close(a.fd)
	}
	err = a.server.sendWith(a.packet, a.fd)
	if a.sent > largeAnswer {
		a.server.save()
	}
	return err
}

// save has memory given back, soon.
func (s *server) save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.thrift == nil {
		s.thrift = time.AfterFunc(calm, debug.FreeOSMemory)
		return
	}
	s.thrift.Reset(calm)
}

// room sends what is there when n bytes more would not fit, and begins the
// next packet with head.
func (a *reply) room(n int, head ...byte) {
	if len(a.packet)+n <= maxPacket || a.err != nil {
		return
	}
	a.packet[answerHeader-1] = byte(statusMore)
	a.err = a.server.send(a.packet)
	a.sent += len(a.packet)
	a.packet = append(appendAnswer(a.packet[:0], a.id, statusDone), head...)
}

// itemHeader is the room, in bytes, for the kind, the length and the errno of an
// entry or item; its name comes on top.
const itemHeader = 9

func (a *reply) list(entries []fsops.DirEntry, err error) error {
	size := 0
	for _, e := range entries {
		if size += len(e.Name) + entryAllowance; size > maxListing {
			return fsops.InvalidError{Text: fmt.Sprintf("directory listing is larger than %d bytes", maxListing)}
		}
	}
	for _, e := range entries {
		a.room(itemHeader + len(e.Name))
		a.packet = appendEntry(a.packet, e)
	}
	return err
}

// walk walks and lists what it found in the order in which it was found, so
// that the agent can end it where its own count of the size would have.
func (a *reply) walk(ctx context.Context, r *request) error {
	var isError []bool
	r.walk.Size = func(path string, err error) int {
		isError = append(isError, err != nil)
		return len(path) + entryAllowance
	}
	found, err := a.server.view.Walk(ctx, r.path, r.walk)
	if err != nil {
		return err
	}
	// The last one that was counted may not have fitted.
	isError = isError[:min(len(isError), len(found.Entries)+len(found.Errors))]
	a.packet = append(a.packet, 0)
	for _, failed := range isError {
		var i walkItem
		if failed {
			i = walkItem{kind: kindError, path: found.Errors[0].Path, err: found.Errors[0].Err}
			found.Errors = found.Errors[1:]
		} else {
			i = walkItem{kind: kindFile, path: found.Entries[0].Path}
			if found.Entries[0].IsDirectory {
				i.kind = kindDirectory
			}
			found.Entries = found.Entries[1:]
		}
		a.room(itemHeader+len(i.path), 0)
		a.packet = i.append(a.packet)
	}
	a.packet[answerHeader] = pack.Bool(found.Truncated)
	return nil
}

// discover reads a root and sends it packed, in pieces.
func (a *reply) discover(ctx context.Context, root string) error {
	found, err := discovery.Read(ctx, a.server.view, root)
	if err != nil {
		return err
	}
	packed := found.Pack(nil)
	if len(packed) > discovery.MaxPacked {
		return fsops.InvalidError{Text: fmt.Sprintf("what was found is larger than %d bytes", discovery.MaxPacked)}
	}
	for piece := range slices.Chunk(packed, maxPacket-answerHeader) {
		a.room(len(piece))
		a.packet = append(a.packet, piece...)
	}
	return nil
}

func (s *server) send(packet []byte) error { return s.sendWith(packet, -1) }

// sendWith sends a packet and, unless it is -1, a descriptor.
func (s *server) sendWith(packet []byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	for {
		_, err := unix.SendmsgN(s.socket, packet, rights, nil, 0)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// receive waits for a packet. One that is too long for buf is cut, which no
// request survives.
func receive(socket int, buf []byte) (int, error) {
	for {
		n, _, _, _, err := unix.Recvmsg(socket, buf, nil, 0)
		if err != unix.EINTR {
			return n, os.NewSyscallError("recvmsg", err)
		}
	}
}
