package files

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/pack"
)

const (
	// idleReaders is the number of goroutines of the helper that wait for requests. Each
	// waits in the kernel, works, answers and waits again, so that a request
	// costs no switch between threads. While others work, one goroutine always waits.
	idleReaders = 2
	// gcPercent keeps the heap at a mebibyte, which is enough for a thousand
	// requests.
	gcPercent = 25
	// largeAnswer is the size of an answer, in bytes, above which the helper returns memory to
	// the kernel. It does so when no such answer has followed for calm, because returning the
	// memory and getting it again costs as much as half of such an answer.
	largeAnswer = 256 << 10
	calm        = time.Second
)

// server is the helper's side: it does the operations that requests ask for.
type server struct {
	socket int
	view   *fsops.View

	mu      sync.Mutex
	waiting int // readers that have no request
	tasks   [maxInFlight]task
	// thrift returns memory to the kernel when calm has passed since the timer was set. It is
	// nil until it is set for the first time, because a timer costs the runtime two
	// descriptors, and most helpers need no timer.
	thrift *time.Timer
}

// task is the cancellable request in a slot.
type task struct {
	id       uint32
	cancel   context.CancelFunc
	canceled uint32 // the number that was canceled last; a cancel may come before its task
}

// serve answers requests until the agent has gone, and returns the exit status.
func (s *server) serve() int {
	over := make(chan error)
	s.waiting = idleReaders
	for range idleReaders {
		go s.read(over)
	}
	// The requests in flight end with the process.
	if err := <-over; err != nil {
		fmt.Fprintln(os.Stderr, "serving file requests:", err)
		return 1
	}
	return 0
}

// read is the loop of one reader.
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

// begin notes that a reader works, and starts another reader if none is left that
// waits. The agent bounds the requests in flight, and so the number of readers.
func (s *server) begin(over chan<- error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting--; s.waiting == 0 {
		s.waiting++
		go s.read(over)
	}
}

// end reports whether a reader that has answered must wait again.
func (s *server) end() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == idleReaders {
		return false
	}
	s.waiting++
	return true
}

// answer does the operation of r and sends the answer. The error is an error of the
// connection.
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
		a.fd, err = s.view.OpenWrite(ctx, r.path, r.writing)
	case opCreateDirectory:
		err = s.view.CreateDirectory(ctx, r.path, r.recursive, r.links)
	case opStat:
		var m fsops.Metadata
		if m, err = s.view.Stat(ctx, r.path, r.links); err == nil {
			a.packet = appendMetadata(a.packet, m)
		}
	case opCanonicalize:
		var path string
		if path, err = s.view.Canonicalize(ctx, r.path, r.missing); err == nil {
			a.packet = pack.AppendString(a.packet, clip(path, maxText))
		}
	case opReadDirectory:
		err = a.list(s.view.ReadDirectory(ctx, r.path, r.details))
	case opWalk:
		err = a.walk(ctx, r)
	case opDiscover:
		err = a.discover(ctx, r.path)
	case opSearch:
		err = a.search(ctx, r)
	case opRemove:
		err = s.view.Remove(ctx, r.path, r.recursive, r.force, r.links)
	case opCopy:
		err = s.view.Copy(ctx, r.path, r.to, r.recursive)
	case opRename:
		err = s.view.Rename(ctx, r.path, r.to, r.force)
	default: // an operation that decodeRequest knows and this switch does not
		err = unix.ENOSYS
	}
	return a.finish(err)
}

// task returns the context of a request. The method cancel ends the context if the
// operation is cancellable.
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

// cancel ends a task. It notes the number, because another reader may have received the
// request but not made the task yet.
func (s *server) cancel(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tasks[id%maxInFlight]
	t.canceled = id
	if t.id == id && t.cancel != nil {
		t.cancel()
	}
}

// reply is an answer that is being sent, in one packet or more.
type reply struct {
	server *server
	id     uint32
	packet []byte // the next packet, not complete yet
	fd     int    // is sent with the last packet, if not -1
	sent   int    // bytes of the packets that were sent
	err    error  // of the connection
}

// finish sends the last packet, or an error answer instead if err is not nil.
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

// save has memory returned to the kernel after calm.
func (s *server) save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.thrift == nil {
		s.thrift = time.AfterFunc(calm, debug.FreeOSMemory)
		return
	}
	s.thrift.Reset(calm)
}

// room makes room for n more bytes. If they do not fit, it sends the packet, and begins the
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

// itemHeader is the size, in bytes, of the kind, the length and the errno of an
// entry or item, without its name.
const itemHeader = 9

// detailsSize is the size of the details of an entry.
const detailsSize = 22

func (a *reply) list(entries []fsops.DirEntry, err error) error {
	size := 0
	for i := range entries {
		if size += listedSize(&entries[i]); size > maxListing {
			return fsops.InvalidError{Text: fmt.Sprintf("directory listing is larger than %d bytes", maxListing)}
		}
	}
	for _, e := range entries {
		a.room(itemHeader + detailsSize + len(e.Name))
		a.packet = appendEntry(a.packet, e)
	}
	return err
}

// walk does a walk, and sends the items in the order in which they were found. So the agent
// can truncate the walk by its own count of the size.
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
	// The last counted item may be missing in found, because it exceeded the size.
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

// discover reads a root, packs it, and sends it in pieces.
func (a *reply) discover(ctx context.Context, root string) error {
	found, err := discovery.Read(ctx, a.server.view, root)
	if err != nil {
		return err
	}
	packed := found.Pack(nil)
	if len(packed) > discovery.MaxPacked {
		return fsops.InvalidError{Text: fmt.Sprintf("what was found is larger than %d bytes", discovery.MaxPacked)}
	}
	a.pieces(packed)
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

// receive waits for a packet. A packet that is too long for buf is cut, so it fails to decode.
func receive(socket int, buf []byte) (int, error) {
	for {
		n, _, _, _, err := unix.Recvmsg(socket, buf, nil, 0)
		if err != unix.EINTR {
			return n, os.NewSyscallError("recvmsg", err)
		}
	}
}
