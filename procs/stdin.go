package procs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// stdinQueue is from how many queued bytes on a write has to wait. One
	// write may exceed it.
	stdinQueue = 1 << 20
	// maxSeen is how many accepted write ids are remembered; rpc.md 4.9.
	maxSeen = 4096
)

// WriteStatus is the answer to a write; rpc.md 4.9.
type WriteStatus uint8

const (
	// Accepted means queued, or known by its id.
	Accepted WriteStatus = iota + 1
	// StdinClosed means that there is no stdin, or no more.
	StdinClosed
)

// String returns the name of s on the wire; rpc.md 4.9.
func (s WriteStatus) String() string {
	switch s {
	case Accepted:
		return "accepted"
	case StdinClosed:
		return "stdinClosed"
	}
	return "unknown"
}

// stdin is our end of a pipe or terminal. What it does not take at once is
// queued, and written by a goroutine that exists only while there is a queue.
type stdin struct {
	file    *os.File
	raw     syscall.RawConn
	shared  bool            // a terminal: the pump closes the file
	running *sync.WaitGroup // of the process

	mu      sync.Mutex
	seen    seenIDs
	queue   [][]byte
	queued  int  // bytes
	writing bool // the goroutine exists
	closing bool // finish was called
	broken  bool // nobody reads any more: writes are dropped
	ended   bool // the leader has exited
	shut    bool // the file is closed
	room    chan struct{}
}

// newStdin takes a file that is non-blocking and known to the poller.
func newStdin(file *os.File, shared bool, running *sync.WaitGroup) (*stdin, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stdin{file: file, raw: raw, shared: shared, running: running}, nil
}

// attempt accepts a write if it need not wait. With ErrStdinFull it returns a
// channel that is closed when that may have changed.
func (s *stdin) attempt(id string, data []byte) (WriteStatus, <-chan struct{}, error) {
	key := keyOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.seen.has(key):
		return Accepted, nil, nil
	case s.closing:
		return StdinClosed, nil, nil
	case s.ended:
		return 0, nil, ErrStdinGone
	case s.queued >= stdinQueue:
		if s.room == nil {
			s.room = make(chan struct{})
		}
		return 0, s.room, ErrStdinFull
	}
	s.seen.add(key)
	if !s.writing {
		data = s.direct(data)
	}
	if len(data) == 0 || s.broken {
		return Accepted, nil, nil
	}
	s.queue = append(s.queue, bytes.Clone(data))
	s.queued += len(data)
	if !s.writing {
		s.writing = true
		s.running.Go(s.drain)
	}
	return Accepted, nil, nil
}

// write is attempt that waits.
func (s *stdin) write(ctx context.Context, id string, data []byte) (WriteStatus, error) {
	for waited := false; ; waited = true {
		status, room, err := s.attempt(id, data)
		switch err {
		case ErrStdinFull:
		case ErrStdinGone:
			if waited {
				return Accepted, nil
			}
			return status, err
		default:
			return status, err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// direct writes what fits now and returns the rest. The caller holds s.mu.
func (s *stdin) direct(data []byte) []byte {
	if s.broken || len(data) == 0 {
		return nil
	}
	var failed bool
	err := s.raw.Write(func(fd uintptr) bool {
		data, failed = push(fd, data)
		return true
	})
	if err != nil || failed {
		s.breakLocked()
		return nil
	}
	return data
}

// push writes until everything is out (then rest is empty), nothing more fits,
// or an error says that nobody will read it: EPIPE, or EIO of a terminal.
func push(fd uintptr, data []byte) (rest []byte, failed bool) {
	for len(data) > 0 {
		n, err := syscall.Write(int(fd), data)
		switch err {
		case nil:
			data = data[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return data, false
		default:
			return nil, true
		}
	}
	return nil, false
}

// drain writes the queue and ends with it.
func (s *stdin) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		data := s.queue[0]
		s.mu.Unlock()
		var failed bool
		err := s.raw.Write(func(fd uintptr) bool {
			data, failed = push(fd, data)
			return failed || len(data) == 0
		})
		s.mu.Lock()
		if err != nil || failed {
			s.breakLocked()
		}
		if len(s.queue) > 0 { // else it was dropped meanwhile
			s.queued -= len(s.queue[0])
			s.queue[0] = nil
			s.queue = s.queue[1:]
		}
		s.wakeLocked()
	}
	s.queue, s.writing = nil, false
	if s.closing {
		s.closeLocked()
	}
}

// finish closes stdin behind the queue.
func (s *stdin) finish() WriteStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.ended {
		return StdinClosed
	}
	s.closing = true
	if !s.writing {
		s.closeLocked()
	}
	s.wakeLocked()
	return Accepted
}

// end drops the queue, closes the pipe and releases those who wait: the
// leader has exited.
func (s *stdin) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.breakLocked()
}

// breakLocked drops the queue, now and in future.
func (s *stdin) breakLocked() {
	s.broken = true
	s.queue, s.queued = nil, 0
	s.closeLocked()
	s.wakeLocked()
}

// closeLocked closes the file, or what of it is ours, and unblocks a write.
func (s *stdin) closeLocked() {
	switch {
	case s.shut:
	case s.shared:
		_ = s.file.SetWriteDeadline(time.Unix(1, 0)) // fails if it is closed
	default:
		_ = s.file.Close() // a pipe: nothing is buffered on our side
	}
	s.shut = true
}

func (s *stdin) wakeLocked() {
	if s.room != nil && (s.queued < stdinQueue || s.closing || s.ended) {
		close(s.room)
		s.room = nil
	}
}

// seenIDs remembers the newest maxSeen write ids by their digests, so that
// long ones take no memory.
type seenIDs struct {
	known map[idKey]struct{}
	ring  []idKey // in order of arrival; next is the oldest once it is full
	next  int
}

type idKey [16]byte

func keyOf(id string) idKey {
	sum := sha256.Sum256([]byte(id))
	return idKey(sum[:16])
}

func (s *seenIDs) has(key idKey) bool {
	_, ok := s.known[key]
	return ok
}

func (s *seenIDs) add(key idKey) {
	if s.known == nil {
		s.known = make(map[idKey]struct{})
	}
	if len(s.ring) < maxSeen {
		s.ring = append(s.ring, key)
	} else {
		delete(s.known, s.ring[s.next])
		s.ring[s.next] = key
		s.next = (s.next + 1) % maxSeen
	}
	s.known[key] = struct{}{}
}
