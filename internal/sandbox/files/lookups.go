package files

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/share"
)

const (
	// maxLookups is the number of policies that are looked up at once. A look-up may take
	// some tenths of a second of processor time, and memory for every file that it sees.
	maxLookups = 6
	// maxStuck is the number of further look-ups that may wait for a file system that
	// does not answer. Such a look-up cannot be interrupted, and takes a thread.
	maxStuck = 2
)

// errUnwanted is the error of a policy that was not looked up, because no request
// waits for it any more.
var errUnwanted = errors.New("nobody waits for the policy")

// beginLookup waits until an owner may look one more policy up, or until unwanted or closing is
// closed. The look-ups of an owner wait for their turn in the order in which they came. The caller
// calls end after the look-up. A look-up that takes longer than patience gives up its turn before
// its end, because it waits for a file system and not for a processor.
func (p *Pool) beginLookup(owner string, unwanted <-chan struct{}) (end func(), err error) {
	if err := take(&p.Lookups, owner, unwanted, p.closing); err != nil {
		return nil, err
	}
	if err := take(&p.busy, owner, unwanted, p.closing); err != nil {
		p.Lookups.Give(owner, 1)
		return nil, err
	}
	let := sync.OnceFunc(func() { p.busy.Give(owner, 1) })
	overdue := time.AfterFunc(patience, let)
	return func() {
		overdue.Stop()
		let()
		p.Lookups.Give(owner, 1)
	}, nil
}

// take takes one of a pool for an owner, as soon as the owner may have it.
func take(p *share.Pool, owner string, unwanted, closing <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-unwanted:
			cancel(errUnwanted)
		case <-closing:
			cancel(errClosed)
		case <-ctx.Done():
		}
	})
	err := p.Wait(ctx, owner, 1)
	cancel(nil)
	watching.Wait()
	return err
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
