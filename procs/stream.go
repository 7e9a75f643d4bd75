package procs

import (
	"bytes"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// chunkSize is the most output of one event, in bytes, and the size of a
	// read. A pipe holds as much by default.
	chunkSize = 64 << 10
	// bulkSize is the same for a process with [Spec.Bulk].
	bulkSize = 256 << 10
	// ptyPending is more than a terminal can hold, in bytes. TIOCINQ, which
	// returns how much a pipe holds, leaves out bytes that the line discipline of
	// a terminal has not seen yet.
	ptyPending = 64 << 10
)

// chunkPool and bulkPool hold free buffers of these sizes.
var (
	chunkPool = sync.Pool{New: func() any { return new([chunkSize]byte) }}
	bulkPool  = sync.Pool{New: func() any { return new([bulkSize]byte) }}
)

// newChunk returns a buffer for a chunk.
func newChunk(bulk bool) []byte {
	if bulk {
		return bulkPool.Get().(*[bulkSize]byte)[:]
	}
	return chunkPool.Get().(*[chunkSize]byte)[:]
}

// reuse recycles a buffer of newChunk that is no longer used. It ignores other
// buffers.
func reuse(buf []byte) {
	switch cap(buf) {
	case chunkSize:
		chunkPool.Put((*[chunkSize]byte)(buf[:chunkSize]))
	case bulkSize:
		bulkPool.Put((*[bulkSize]byte)(buf[:bulkSize]))
	}
}

// stream is our end of one output of a process. The pump reads it all the time;
// the waiter reads it once, when the leader has exited.
type stream struct {
	name Stream
	bulk bool
	file *os.File // closed by the pump
	raw  syscall.RawConn

	bound *bound // nil: all output is delivered; mu guards it

	mu  sync.Mutex // held from a read to the delivery of its data
	eof bool
}

// newStream takes a file that is non-blocking and in the poller.
func newStream(name Stream, file *os.File) (*stream, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stream{name: name, file: file, raw: raw}, nil
}

// pump delivers the output of s until its end.
func (p *Process) pump(s *stream) {
	// raw.Read is called once for the whole life of the stream: false parks the
	// goroutine until the poller sees the next edge. So it has to read until
	// EAGAIN.
	_ = s.raw.Read(func(fd uintptr) bool {
		for !p.closing.Load() {
			s.mu.Lock()
			_, more := p.gatherLocked(s, int(fd))
			eof := s.eof
			s.mu.Unlock()
			if eof {
				return true
			}
			if !more {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	p.endStreamLocked(s) // if Close or an error of the poller has ended the read
	s.mu.Unlock()
	_ = s.file.Close() // nothing was written
}

// drain delivers the bytes that s holds now, so that the exit comes after all
// output of the leader. It delivers no more than that, because a child left
// behind may write for ever.
func (p *Process) drain(s *stream) {
	// Control fails if the pump has seen the end.
	ended := false
	_ = s.raw.Control(func(fd uintptr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		pending := ptyPending
		if s.name != PTY {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			if err == nil {
				pending = n
			}
		}
		// With <= there is one read more than needed, which usually finds the end
		// of the output.
		for got, more := 0, true; more && got <= pending && !p.closing.Load(); {
			var n int
			n, more = p.gatherLocked(s, int(fd))
			got += n
		}
		ended = s.eof
	})
	if ended && s.name == PTY {
		// The pump may have met the same end before the exit, when it did not
		// count, and may have been parked since.
		s.interrupt()
	}
}

// gatherLocked delivers the bytes that can be read at once, at most one chunk.
// It reports whether there may be more. The caller holds s.mu.
func (p *Process) gatherLocked(s *stream, fd int) (n int, more bool) {
	if s.eof {
		return 0, false
	}
	buf := newChunk(s.bulk)
	n, more, eof := fill(fd, buf)
	if eof && s.name == PTY && !p.exited.Load() {
		// No process has the terminal open, but the leader still runs, as cat
		// does between closing its files and its exit. Some process may open
		// the terminal again, and hanging up now would kill the leader.
		eof = false
	}
	data := s.bound.take(buf[:n])
	// A nearly full buffer becomes a chunk as it is. Less data is copied, so a kept
	// chunk wastes at most a quarter.
	if len(data) < len(buf)/4*3 {
		data = bytes.Clone(data)
		reuse(buf)
	}
	if len(data) > 0 {
		p.emit(Event{Kind: Output, Stream: s.name, Data: data})
	}
	if eof {
		p.endStreamLocked(s)
	}
	return n, more
}

// endStreamLocked notes the end of s, once.
func (p *Process) endStreamLocked(s *stream) {
	if !s.eof {
		s.eof = true
		p.deliverRestLocked(s)
		p.endPart()
	}
}

// fill reads until buf is full (more), the stream is empty for now, or the stream
// ends (eof).
func fill(fd int, buf []byte) (n int, more, eof bool) {
	for n < len(buf) {
		m, err := syscall.Read(fd, buf[n:])
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return n, false, false
		case err != nil || m == 0:
			// EIO is the end of a pty: the last descriptor of the tty is
			// closed.
			return n, false, true
		default:
			n += m
		}
	}
	return n, true, false
}

// interrupt ends the pump of s if the pump is parked.
func (s *stream) interrupt() {
	_ = s.file.SetReadDeadline(time.Unix(1, 0)) // fails if it has ended
}

// resize sets the size of a terminal.
func (s *stream) resize(size Winsize) (err error) {
	// This does not use File.Fd, which would make the file blocking and every
	// read take a thread. Control fails only after the end, when there is no
	// terminal any more.
	_ = s.raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	return os.NewSyscallError("TIOCSWINSZ", err)
}
