package agent

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/httpclient"
	"github.com/execagent/execagent/protocol"
)

// What is read whole, a file, a listing or an HTTP body, takes memory until the
// client has it. The limits are in bytes of memory. What a message has around
// the bytes of a file or body is made while it is sent and costs nothing; that
// around a listing is counted.
const (
	// An answer of leastAnswer bytes or more counts for its connection. Smaller ones
	// are bounded by the number of requests that run at once.
	leastAnswer = 64 << 10
	// maxAnswers is what the answers of one connection hold together while it
	// takes them. A larger one is held alone: they are sent one after the other
	// anyway, so nothing waits longer.
	maxAnswers = 2 << 20
	// An answer of largeAnswer bytes or more also counts for all connections: more
	// than the largest block or answer of process/read.
	largeAnswer = 1<<20 + 1
	// maxListings and maxBodies bound those of one connection. A listing counts once
	// it has been read, a body as it grows. The largest of either fit.
	maxListings = 256 << 20
	maxBodies   = httpclient.MaxBufferedBody + 256<<20
)

// DefaultContentBytes is the default of [Config.ContentBytes]: twice the largest
// file.
const DefaultContentBytes = 2 * fsops.MaxFileSize

// contentPatience is how long an answer waits for what other clients have not
// read yet. Who reads gives it back soon; who does not must not hold up all.
const contentPatience = 10 * time.Second

// content is the memory for what clients have asked for.
type content struct {
	*semaphore.Weighted
	size     int64
	patience time.Duration
}

func newContent(size int64) *content {
	return &content{semaphore.NewWeighted(size), size, contentPatience}
}

// share is the memory that one answer holds.
type share struct {
	own   *semaphore.Weighted // of the connection
	total *content            // of the agent

	ownHeld, held int64
}

// answer takes n bytes for an answer that is read next, after others of the
// connection have been sent. Where the agent is short of memory for long it
// fails.
func (s *share) answer(ctx context.Context, n int64) error {
	if n < leastAnswer {
		return nil
	}
	if err := s.own.Acquire(ctx, min(n, maxAnswers)); err != nil {
		return err
	}
	s.ownHeld += min(n, maxAnswers)
	if n < largeAnswer {
		return nil
	}
	return s.await(ctx, n)
}

// list takes what a listing costs, if it is large.
func (s *share) list(ctx context.Context, cost int64) error {
	if cost < largeAnswer {
		return nil
	}
	if err := s.own.Acquire(ctx, cost); err != nil {
		return err
	}
	s.ownHeld += cost
	return s.await(ctx, cost)
}

// listedCost is what a name of n bytes costs in a listing: once as it was read
// and once in the message, which has some 50 bytes around it, and the entries
// of both lists.
func listedCost(n int) int64 { return 2*int64(n) + 128 }

// body takes n bytes for a body that is being read, or fails where there are
// none: those that wait would hold what the others wait for.
func (s *share) body(n int64) error {
	if !s.own.TryAcquire(n) {
		return errShortOfMemory(n)
	}
	s.ownHeld += n
	if !s.total.TryAcquire(n) {
		s.release()
		return errShortOfMemory(n)
	}
	s.held += n
	return nil
}

// await takes n bytes of the agent's.
func (s *share) await(ctx context.Context, n int64) error {
	if n > s.total.size {
		s.release()
		return protocol.Errorf(protocol.CodeInternal,
			"an answer of %d bytes is larger than the memory that this agent has for answers, %d bytes", n, s.total.size)
	}
	soon, cancel := context.WithTimeout(ctx, s.total.patience)
	defer cancel()
	if s.total.Acquire(soon, n) != nil {
		s.release()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errShortOfMemory(n)
	}
	s.held += n
	return nil
}

// release gives everything back.
func (s *share) release() {
	if s.ownHeld > 0 {
		s.own.Release(s.ownHeld)
	}
	if s.held > 0 {
		s.total.Release(s.held)
	}
	s.ownHeld, s.held = 0, 0
}

func errShortOfMemory(n int64) error {
	return protocol.Errorf(protocol.CodeInternal,
		"no memory for %d more bytes of answers that clients have not read yet", n)
}
