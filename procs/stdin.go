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
	// stdinQueue bounds the queue, in bytes. The queue holds copies; the part
	// of a longer write that does not fit stays with the caller, which waits.
	stdinQueue = 1 << 20
	// stdinPiece is the size of the pieces in which a longer write enters the
	// queue, in bytes. Waiting writes are woken when there is room for one
	// piece.
	stdinPiece = stdinQueue / 4
	// maxSeen is how many accepted ids of writes are remembered, as in the
	// reference (rpc.md 4.9).
	maxSeen = 4096
)

// WriteStatus is the answer to a write (rpc.md 4.9).
type WriteStatus uint8

const (
	// Accepted: the data is queued, or its id was accepted before.
	Accepted WriteStatus = iota + 1
	// StdinClosed: there is no stdin, or it was closed.
	StdinClosed
)

// String returns the name of s on the wire (rpc.md 4.9).
func (s WriteStatus) String() string {
	switch s {
	case Accepted:
		return "accepted"
	case StdinClosed:
		return "stdinClosed"
	}
	return "unknown"
}

// stdin is our end of a pipe or terminal. Data that the pipe or terminal does not
// take at once is queued, and a goroutine, which exists only while there is a
// queue, writes it. Only writes longer than the queue are taken in parts.
type stdin struct {
	file    *os.File
	raw     syscall.RawConn
	shared  bool            // the file is a terminal, which the pump closes
	running *sync.WaitGroup // of the process

	mu      sync.Mutex
	seen    seenIDs
	queue   [][]byte
	queued  int  // bytes
	writing bool // the goroutine exists
	closing bool // finish was called
	waiting int  // writes that wait; stdin is closed after them
	cut     cutWrite
	broken  bool // there is no reader any more: writes are dropped
	ended   bool // the leader has exited
	shut    bool // the file is closed
	room    chan struct{}
}

// cutWrite is a write of which only the first taken bytes are queued or
// delivered so far. There is none if taken is 0.
type cutWrite struct {
	key    idKey
	taken  int
	active bool // its call still waits to deliver the rest
}

// newStdin takes a file that is non-blocking and in the poller.
func newStdin(file *os.File, shared bool, running *sync.WaitGroup) (*stdin, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &stdin{file: file, raw: raw, shared: shared, running: running}, nil
}

// tryWrite accepts a write if that need not wait.
func (s *stdin) tryWrite(id string, data []byte) (WriteStatus, error) {
	key := keyOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if status, known, err := s.knownLocked(key, false); known {
		return status, err
	}
	if len(data) > stdinQueue && !s.broken || !s.takeLocked(key, data) {
		return 0, ErrStdinFull
	}
	return Accepted, nil
}

// write accepts a write, and waits until it can.
func (s *stdin) write(ctx context.Context, id string, data []byte) (WriteStatus, error) {
	key := keyOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.finishLocked() // closing may wait for this write
	for waited := false; ; waited = true {
		if status, known, err := s.knownLocked(key, waited); known {
			return status, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if s.takeLocked(key, data) {
			return Accepted, nil
		}
		if err := s.waitLocked(ctx, key); err != nil {
			return 0, err
		}
	}
}

// waitLocked unlocks the mutex and waits until there may be room, or the process
// or ctx has ended. Then it locks the mutex again.
func (s *stdin) waitLocked(ctx context.Context, key idKey) error {
	if s.room == nil {
		s.room = make(chan struct{})
	}
	room, active := s.room, s.cutIsLocked(key) && !s.cut.active
	if active {
		s.cut.active = true
	}
	s.waiting++
	s.mu.Unlock()
	var err error
	select {
	case <-room:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	s.waiting--
	if active {
		s.cut.active = false
		s.wakeLocked() // others wait for this write
	}
	return err
}

// knownLocked answers a write whose data is not to be taken: it was accepted
// before, or stdin is closed or cut. It returns known = false for all others.
// waited says that this call has already waited, so it came before the end.
func (s *stdin) knownLocked(key idKey, waited bool) (status WriteStatus, known bool, err error) {
	waited = waited || s.cutIsLocked(key)
	switch {
	case s.seen.has(key), s.ended && waited:
		return Accepted, true, nil
	case s.closing && !waited:
		return StdinClosed, true, nil
	case s.ended:
		return 0, true, ErrStdinGone
	case s.cutOffLocked() && !s.cutIsLocked(key):
		return 0, true, ErrStdinCut
	}
	return 0, false, nil
}

// cutOffLocked reports whether the rest of a cut write is missing and no call waits
// to deliver it.
func (s *stdin) cutOffLocked() bool { return s.cut.taken > 0 && !s.cut.active && !s.broken }

func (s *stdin) cutIsLocked(key idKey) bool { return s.cut.taken > 0 && s.cut.key == key }

// takeLocked queues or delivers data. If data is longer than the queue, it
// takes as much as fits. It reports whether it took all.
func (s *stdin) takeLocked(key idKey, data []byte) bool {
	long := len(data) > stdinQueue || s.cutIsLocked(key)
	switch {
	case s.broken:
	case s.cut.active:
		return false // another write is being taken in parts
	case !long && s.queued+len(data) > stdinQueue:
		return false
	case !long:
		s.queueLocked(s.directLocked(data))
	default:
		if s.cutIsLocked(key) {
			data = data[min(s.cut.taken, len(data)):]
		} else {
			s.cut = cutWrite{key: key}
		}
		before := len(data)
		data = s.directLocked(data)
		for len(data) > 0 {
			n := min(len(data), stdinPiece)
			if s.queued+n > stdinQueue {
				s.cut.taken += before - len(data)
				return false
			}
			s.queueLocked(data[:n])
			data = data[n:]
		}
	}
	if s.cut.key == key {
		s.cut = cutWrite{}
	}
	s.seen.add(key)
	return true
}

// queueLocked queues a copy of data. Large data goes into recycled buffers.
func (s *stdin) queueLocked(data []byte) {
	if len(data) == 0 || s.broken {
		return
	}
	s.queued += len(data)
	for len(data) >= bulkSize/4*3 {
		piece := newChunk(true)
		piece = piece[:copy(piece, data)]
		s.queue = append(s.queue, piece)
		data = data[len(piece):]
	}
	if len(data) > 0 {
		s.queue = append(s.queue, bytes.Clone(data))
	}
	if !s.writing {
		s.writing = true
		s.running.Go(s.drain)
	}
}

// directLocked writes what fits now, unless there is a queue, and returns the
// rest.
func (s *stdin) directLocked(data []byte) []byte {
	switch {
	case s.broken || len(data) == 0:
		return nil
	case s.writing:
		return data
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

// push writes until all is written (rest is empty), no more fits, or an error
// says that there is no reader: EPIPE, or EIO of a terminal.
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

// drain writes the queue, and returns when it is empty.
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
		if len(s.queue) > 0 { // else breakLocked has dropped it
			s.queued -= len(s.queue[0])
			reuse(s.queue[0])
			s.queue[0] = nil
			s.queue = s.queue[1:]
		}
		s.wakeLocked()
	}
	s.queue, s.writing = nil, false
	s.finishLocked()
}

// finish closes stdin after the queue and the waiting writes. The rest of a cut write is given up.
func (s *stdin) finish() (WriteStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.ended {
		return StdinClosed, nil
	}
	if s.cutOffLocked() {
		s.cut = cutWrite{}
	}
	s.closing = true
	s.finishLocked()
	return Accepted, nil
}

// finishLocked closes the file if finish was called and all is delivered.
func (s *stdin) finishLocked() {
	if s.closing && !s.writing && s.waiting == 0 && s.cut.taken == 0 {
		s.closeLocked()
	}
}

// end notes the exit of the leader: it drops the queue, closes the pipe and
// wakes the waiting writes.
func (s *stdin) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.breakLocked()
}

// breakLocked drops the queue, and all later writes.
func (s *stdin) breakLocked() {
	s.broken = true
	s.queue, s.queued = nil, 0
	s.closeLocked()
	s.wakeLocked()
}

// closeLocked closes a pipe. A terminal stays open for the pump; a deadline in the
// past ends its writes, including a blocked one.
func (s *stdin) closeLocked() {
	switch {
	case s.shut:
	case s.shared:
		_ = s.file.SetWriteDeadline(time.Unix(1, 0)) // fails if it is closed
	default:
		_ = s.file.Close() // nothing of a pipe is buffered in this process
	}
	s.shut = true
}

func (s *stdin) wakeLocked() {
	if s.room != nil && (s.queued <= stdinQueue-stdinPiece || s.ended) {
		close(s.room)
		s.room = nil
	}
}

// seenIDs remembers the newest maxSeen ids of writes. It keeps digests, so that
// long ids take no more memory than short ones.
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
