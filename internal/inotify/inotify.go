// Package inotify shares one instance of inotify(7) among all watchers of files, because a user may
// have few instances, usually 128, and closing an instance takes milliseconds. A watcher adds a
// watch to a [Group] and removes it again. Linux only.
package inotify

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// An Event is an event of a watched object, as in inotify(7).
type Event struct {
	// WD is the number of the watch. With IN_Q_OVERFLOW it is -1, and events of any watch were lost.
	WD     int32
	Mask   uint32
	Cookie uint32 // the same in both halves of a rename
	Name   string // name in the directory; empty if the event is about the watched object itself
}

// A Subscriber receives events. Values are compared, so pointers are best.
type Subscriber interface {
	// Notice receives an event of one of the subscriber's watches. It must neither block nor call the
	// group, because all subscribers wait for it.
	Notice(Event)
}

// A Group is one instance of inotify, which the first Add makes. The kernel numbers watches by
// object: two watches of one object have the same number, even for different subscribers. The zero
// value is ready for use. All methods may be called concurrently.
type Group struct {
	mu      sync.Mutex // guards the fields below
	file    *os.File   // nil before the first Add
	fd      int
	closed  bool
	watches map[int32][]share
	buf     []byte
	done    chan struct{} // closed when the reader has ended
}

// bufferSize is the size of the buffer for reading, in bytes.
const bufferSize = 64 << 10

// maxDrained bounds the reads of one [Group.Add]. The kernel usually keeps up to 16,384 events
// (inotify(7), max_queued_events). These are fewer bytes than maxDrained reads return.
const maxDrained = 128

// share is the part of one subscriber in a watch: the events that it has asked for.
type share struct {
	subscriber Subscriber
	mask       uint32
}

// always are the events that every subscriber gets without asking: the watch has ended, or events
// were lost.
const always = unix.IN_IGNORED | unix.IN_UNMOUNT | unix.IN_Q_OVERFLOW

// Add watches the object at path and returns the number of the watch. A subscriber that adds an
// object again gets the events of both masks. The subscriber may get an event before Add returns,
// but no event from before the call. The number means this object until Remove or IN_IGNORED, and
// nothing after that.
func (g *Group) Add(path string, mask uint32, s Subscriber) (wd int32, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.openLocked(); err != nil {
		return -1, err
	}
	// Events in the kernel's queue go to the present subscribers first, because they may be about this
	// object if it is already watched. The number of reads is bounded, so that a flood of events
	// cannot block Add.
	for range maxDrained {
		if !g.takeLocked() {
			break
		}
	}
	n, err := unix.InotifyAddWatch(g.fd, path, mask|unix.IN_MASK_ADD)
	if err != nil {
		return -1, err
	}
	wd, mask = int32(n), mask&unix.IN_ALL_EVENTS
	shares := g.watches[wd]
	if i := slices.IndexFunc(shares, func(o share) bool { return o.subscriber == s }); i >= 0 {
		shares[i].mask |= mask
		return wd, nil
	}
	g.watches[wd] = append(shares, share{s, mask})
	return wd, nil
}

func (g *Group) openLocked() error {
	switch {
	case g.closed:
		return os.ErrClosed
	case g.file != nil:
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	g.file, g.fd = os.NewFile(uintptr(fd), "inotify"), fd
	g.watches, g.buf, g.done = map[int32][]share{}, make([]byte, bufferSize), make(chan struct{})
	go g.read()
	return nil
}

// Remove ends the part of s in a watch. Unknown numbers are ignored. Events that the kernel has
// already queued are not passed on.
func (g *Group) Remove(wd int32, s Subscriber) {
	g.mu.Lock()
	defer g.mu.Unlock()
	shares := g.watches[wd]
	i := slices.IndexFunc(shares, func(o share) bool { return o.subscriber == s })
	switch {
	case i < 0:
	case len(shares) > 1:
		g.watches[wd] = slices.Delete(shares, i, i+1)
	default:
		delete(g.watches, wd)
		if !g.closed {
			_, _ = unix.InotifyRmWatch(g.fd, uint32(wd)) // the kernel may have removed it
		}
	}
}

// Close ends all watches and waits for the reader. After it, no events are passed on, and Add
// fails. It may be called more than once.
func (g *Group) Close() {
	g.mu.Lock()
	file, done := g.file, g.done
	g.closed = true
	g.mu.Unlock()
	if file != nil {
		_ = file.Close() // without the mutex, because it waits for the reader
		<-done
	}
}

// read passes events to the subscribers until the instance is closed.
func (g *Group) read() {
	defer close(g.done)
	defer g.file.Close()
	conn, err := g.file.SyscallConn()
	if err != nil {
		return // closed
	}
	// Events are read while the mutex is held, so that every event that has left the kernel's queue
	// was passed on. An error says that the file is closed.
	_ = conn.Read(func(uintptr) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		for g.takeLocked() {
			g.mu.Unlock() // lets other callers take the mutex
			g.mu.Lock()
		}
		return g.closed
	})
}

// takeLocked reads once and passes the events on. It returns false if there were none.
func (g *Group) takeLocked() bool {
	if g.closed {
		return false
	}
	n, err := unix.Read(g.fd, g.buf)
	switch err {
	case nil:
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		return false
	default:
		// This should not happen. All subscribers learn that events were lost, and no watch can be added
		// after it.
		g.tellLocked(Event{WD: -1, Mask: unix.IN_Q_OVERFLOW})
		g.closed = true
		return false
	}
	for rest := g.buf[:n]; len(rest) > 0; {
		event, size := parse(rest)
		if size == 0 {
			event, size = Event{WD: -1, Mask: unix.IN_Q_OVERFLOW}, len(rest)
		}
		g.tellLocked(event)
		rest = rest[size:]
	}
	return true
}

// tellLocked passes an event to the subscribers of its watch, and the loss of events to all
// subscribers.
func (g *Group) tellLocked(e Event) {
	if e.Mask&unix.IN_Q_OVERFLOW != 0 {
		told := map[Subscriber]bool{}
		for _, shares := range g.watches {
			for _, s := range shares {
				if !told[s.subscriber] {
					told[s.subscriber] = true
					s.subscriber.Notice(e)
				}
			}
		}
		return
	}
	for _, s := range g.watches[e.WD] {
		if e.Mask&(s.mask|always) != 0 {
			s.subscriber.Notice(e)
		}
	}
	if e.Mask&unix.IN_IGNORED != 0 {
		delete(g.watches, e.WD)
	}
}

// parse decodes one inotify_event (inotify(7)) at the start of b: watch, mask, cookie and name
// length of 4 bytes each, then the name up to a NUL. n is its length, or 0 if b does not hold a
// whole event.
func parse(b []byte) (e Event, n int) {
	if len(b) < unix.SizeofInotifyEvent {
		return Event{}, 0
	}
	size := uint64(binary.NativeEndian.Uint32(b[12:])) + unix.SizeofInotifyEvent
	if size > uint64(len(b)) {
		return Event{}, 0
	}
	name := b[unix.SizeofInotifyEvent:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return Event{
		WD:     int32(binary.NativeEndian.Uint32(b)),
		Mask:   binary.NativeEndian.Uint32(b[4:]),
		Cookie: binary.NativeEndian.Uint32(b[8:]),
		Name:   string(name),
	}, int(size)
}
