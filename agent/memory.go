package agent

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/httpclient"
	"github.com/execagent/execagent/protocol"
)

// Limits, in bytes, of the memory that answers hold until they are sent: files,
// listings and HTTP bodies, which are read whole. Counted is the content of a file
// or body, since its message is made piece by piece while it is sent. The message
// of a listing is made whole, and counted too.
const (
	// An answer of leastAnswer bytes or more counts for its connection. The
	// number of requests that run at once bounds the smaller ones.
	leastAnswer = 64 << 10
	// maxAnswers is what the answers of one connection hold together. A larger
	// answer waits until it is the only one. That delays nothing, since answers
	// are sent one after the other anyway.
	maxAnswers = 2 << 20
	// An answer of largeAnswer bytes or more counts for all connections, too.
	// The largest block, and the largest answer of process/read, are smaller.
	largeAnswer = 1<<20 + 1
	// maxListings bounds the listings of one connection, and maxBodies its
	// bodies; the largest listing and the largest body fit. A listing counts once
	// it has been read, a body as it grows.
	maxListings = 256 << 20
	maxBodies   = httpclient.MaxBufferedBody + 256<<20
)

// DefaultContentBytes is the default of [Config.ContentBytes]: twice the largest
// file.
const DefaultContentBytes = 2 * fsops.MaxFileSize

// contentPatience is how long an answer waits for memory that the answers to other
// clients hold. A client that reads its answers gives memory back sooner than that;
// a client that does not must not hold up all others.
const contentPatience = 10 * time.Second

// content is the memory for the answers of all connections.
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

// answer takes n bytes for an answer, before the answer is read. It waits until
// enough other answers of the connection have been sent, and fails if the agent
// stays short of memory for contentPatience.
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

// list takes the cost of a listing that has been read, if it is large.
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

// listedCost is what a name of n bytes costs in a listing: the name as it was
// read and in the message, the entries of both lists, and the 50 bytes or so
// around it in the message.
func listedCost(n int) int64 { return 2*int64(n) + 128 }

// body takes n bytes for a body that is being read, or fails at once. If bodies
// waited for more, each would hold what the others wait for.
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

// await takes n bytes of the agent's memory. When it fails, it has given back
// all that the answer holds.
func (s *share) await(ctx context.Context, n int64) error {
	if n > s.total.size {
		s.release()
		return protocol.Errorf(protocol.CodeInternal,
			"an answer of %d bytes is larger than the memory that this agent has for answers, %d bytes", n, s.total.size)
	}
	if !s.total.TryAcquire(n) { // Acquire could find its time over before it looks
		soon, cancel := context.WithTimeout(ctx, s.total.patience)
		defer cancel()
		if s.total.Acquire(soon, n) != nil {
			s.release()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return errShortOfMemory(n)
		}
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
