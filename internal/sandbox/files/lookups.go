package files

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxLookups is the number of policies that are looked up at once. A look-up may take
	// some tenths of a second of processor time, and memory for every file that it sees.
	maxLookups = 4
	// maxWaiting is the number of further look-ups that may wait for a file system that
	// does not answer. Such a look-up cannot be interrupted, and takes a thread.
	maxWaiting = 4
)

// errUnwanted is the error of a policy that was not looked up, because no request
// waits for it any more.
var errUnwanted = errors.New("nobody waits for the policy")

// lookups bounds the number of policies that are looked up at once. The look-ups wait for
// their turn in the order in which they came.
type lookups struct{ all, busy chan struct{} }

func newLookups() *lookups {
	return &lookups{all: make(chan struct{}, maxLookups+maxWaiting), busy: make(chan struct{}, maxLookups)}
}

// begin waits for a turn, or until unwanted or closing is closed. The caller calls end after
// the look-up. A look-up that takes longer than patience gives up its turn before its end,
// because it waits for a file system and not for a processor.
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

// defaultDescriptors returns the default of [Config.Descriptors]. It leaves most of the
// descriptors of this process to connections and processes, even while every look-up holds
// as many descriptors as it may.
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
