package sockowner

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// interval is how often a watch looks. The kernel tells that a socket is closed, and does not tell that
	// one begins to listen.
	interval = 500 * time.Millisecond
	// calm is the least time between two looks. The kernel tells of every TCP connection that is closed.
	calm = 100 * time.Millisecond
	// The groups of linux/sock_diag.h that tell of TCP sockets that are closed.
	tcpDestroy  = 1
	tcp6Destroy = 3
)

// Watch follows the TCP ports that listen, while somebody watches: one goroutine looks, for all who do. The zero
// value is ready for use, and its methods may be called concurrently. The field may be set before the first call.
type Watch struct {
	Most int // bounds the list

	mu       sync.Mutex // guards what follows
	watchers int
	now      *Seen
	end      func() // ends the goroutine, and waits for it
}

// Seen is what a watch has seen. Nobody may change it.
type Seen struct {
	Listeners []Listener
	More      bool
	// Old is closed when there is something newer.
	Old <-chan struct{}

	sockets []socket
	holders map[uint32]int
	old     chan struct{}
}

// Begin begins to watch, and returns what listens. The caller calls End once.
func (w *Watch) Begin() (*Seen, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watchers > 0 {
		w.watchers++
		return w.now, nil
	}
	now, err := w.look(nil)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.watchers, w.now = 1, now
	w.end = func() {
		stop()
		running.Wait()
	}
	running.Go(func() { w.follow(ctx, now) })
	return now, nil
}

// End ends what Begin has begun, and waits for the goroutine if nobody else watches.
func (w *Watch) End() {
	end := func() {}
	w.mu.Lock()
	if w.watchers--; w.watchers == 0 {
		end = w.end
	}
	w.mu.Unlock()
	end()
}

// Now returns what was seen last, while the caller watches.
func (w *Watch) Now() *Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// look returns what listens. It is last if the sockets are the same.
func (w *Watch) look(last *Seen) (*Seen, error) {
	open, more, err := listening()
	if err != nil || last != nil && slices.Equal(open, last.sockets) {
		return last, err
	}
	seen := &Seen{sockets: open, old: make(chan struct{})}
	var known map[uint32]int
	if last != nil {
		known = last.holders
	}
	seen.Old, seen.holders = seen.old, holders(open, known)
	seen.Listeners, seen.More = named(open, seen.holders, w.Most, more)
	return seen, nil
}

// follow looks until the context ends. A look that fails is repeated.
func (w *Watch) follow(ctx context.Context, last *Seen) {
	closing := subscribe()
	defer context.AfterFunc(ctx, func() { closing.Close() })()
	defer closing.Close()
	for {
		pause(ctx, closing)
		if ctx.Err() != nil {
			return
		}
		if now, err := w.look(last); err == nil && now != last {
			w.mu.Lock()
			if w.now == last {
				w.now = now
			}
			w.mu.Unlock()
			close(last.old)
			last = now
		}
	}
}

// subscribe returns a socket that tells of closed TCP sockets, or nil if the kernel or a filter refuses it.
func subscribe() *os.File {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil
	}
	groups := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(tcpDestroy-1) | 1<<(tcp6Destroy-1)}
	if err := unix.Bind(fd, groups); err != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "sock_diag")
}

// pause waits until a socket is closed, or for interval.
func pause(ctx context.Context, closing *os.File) {
	wait := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if closing == nil {
		wait(interval)
		return
	}
	message := make([]byte, 512) // the rest of a message is of no interest
	_ = closing.SetReadDeadline(time.Now().Add(interval))
	_, err := closing.Read(message)
	if os.IsTimeout(err) || ctx.Err() != nil {
		return
	}
	wait(calm)
	for range 1 << 16 { // those that have come meanwhile
		_ = closing.SetReadDeadline(time.Now())
		if _, err := closing.Read(message); err != nil {
			return
		}
	}
}
