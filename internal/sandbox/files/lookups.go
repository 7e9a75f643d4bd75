package files

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxLookups is how many policies are looked up at once: each may take
	// some tenths of a second of a processor, and memory for all it sees.
	maxLookups = 4
	// maxWaiting is how many more may be held up by a file system that does not
	// reply. None of them can be interrupted, and each takes a thread.
	maxWaiting = 4
)

// errUnwanted is the error of a policy that was not looked up since no request
// waits for it any more.
var errUnwanted = errors.New("nobody waits for the policy")

// lookups bounds how many policies are looked up at once. They wait for their
// turn in the order in which they came.
type lookups struct{ all, busy chan struct{} }

func newLookups() *lookups {
	return &lookups{all: make(chan struct{}, maxLookups+maxWaiting), busy: make(chan struct{}, maxLookups)}
}

// begin waits for a turn until unwanted or closing is closed. The caller calls end.
// A lookup that takes longer than patience gives up its turn before: it waits for a
// file system, not for a processor.
func (l *lookups) begin(unwanted, closing <-chan struct{}) (end func(), err error) {
	if err := take(l.all, unwanted, closing); err != nil {
		return nil, err
	}
	if err := take(l.busy, unwanted, closing); err != nil {
		<-l.all
		return nil, err
	}
	let := sync.OnceFunc(func() { <-l.busy })
	overdue := time.AfterFunc(patience, let)
	return func() {
		overdue.Stop()
		let()
		<-l.all
	}, nil
}

func take(slots chan<- struct{}, unwanted, closing <-chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-unwanted:
		return errUnwanted
	case <-closing:
		return errClosed
	}
}

// defaultDescriptors leaves the greater part of what this process may open to
// connections and processes, also while all that is looked up at once holds as
// much as it can.
func defaultDescriptors() int {
	const most = 2048
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	return int(min(most, limit.Cur/8))
}

// exhausted reports whether err says that no more descriptors can be opened.
func exhausted(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }
