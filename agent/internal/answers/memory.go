// Package answers bounds the memory that an agent's answers hold until they are sent.
package answers

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/httpclient"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

// Limits, in bytes, of the memory that answers hold until they are sent: files, listings and HTTP
// bodies, which are read whole. The content of a file or body is counted, because its message is
// made piece by piece while it is sent. The message of a listing is made whole and counted too.
const (
	// An answer of Least bytes or more counts for its connection. Smaller answers are bounded by the
	// number of requests that run at once.
	Least = 64 << 10
	// MaxAnswers bounds the answers of one connection together. A larger answer waits until it is the
	// only one. This delays nothing, because answers are sent one after the other anyway.
	MaxAnswers = 2 << 20
	// An answer of Large bytes or more counts for all connections, too. The largest block of a file,
	// and the largest answer of process/read, are smaller.
	Large = 1<<20 + 1
	// MaxListings bounds the listings of one connection, and MaxBodies its bodies. The largest listing
	// and the largest body fit. A listing counts once it has been read, a body as it grows.
	MaxListings = 256 << 20
	MaxBodies   = httpclient.MaxBufferedBody + 256<<20
)

// DefaultBytes is the default size of a [Memory]: twice the largest file.
const DefaultBytes = 2 * fsops.MaxFileSize

// Patience is the time for which an answer waits for memory that other answers hold. A
// client that reads its answers gives memory back sooner, and a client that does not read must not
// block all others.
const Patience = 10 * time.Second

// Memory is the memory for the answers of all connections, of which each owner of connections has a
// share. An owner that has no answer in it may have one that takes all that is free.
type Memory struct {
	share.Pool
	Patience time.Duration // time to wait for memory that others hold
}

// takeSoon takes n bytes. It waits for Patience at most, and then returns the error that short makes.
func (m *Memory) takeSoon(ctx context.Context, owner string, n int64, short func(int64) error) error {
	soon, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	switch {
	case m.Wait(soon, owner, n) == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return short(n)
}

// NewMemory returns the memory of one agent.
func NewMemory(size int64) *Memory { return &Memory{share.Pool{Max: size}, Patience} }

// Decoders is the memory for the decoders of compressed bodies.
type Decoders struct{ Memory }

// NewDecoders returns that memory, for an agent with so many bytes for answers: enough for one body of
// each of two owners, however few that are.
func NewDecoders(size int64) *Decoders {
	return &Decoders{Memory{share.Pool{Max: max(size/4, 2*httpclient.MaxRoom)}, Patience}}
}

// Decoder takes n bytes for the decoder of a body. It waits for Patience at most, because the bodies
// that hold the memory may be streams without an end.
func (d *Decoders) Decoder(ctx context.Context, owner string, n int64) (release func(), err error) {
	if err := d.takeSoon(ctx, owner, n, errNoDecoder); err != nil {
		return nil, err
	}
	return func() { d.Give(owner, n) }, nil
}

func errNoDecoder(n int64) error {
	return noMemory("no memory for the decoder of one more compressed answer, %d bytes", n)
}

// A Share is the memory that one answer holds.
type Share struct {
	Own   *semaphore.Weighted // memory of the connection
	Total *Memory             // memory of the agent
	Owner string              // of the share of Total

	ownHeld, held int64
}

// Answer takes n bytes for an answer, before the answer is read. It waits until enough other
// answers of the connection have been sent. It fails if the agent stays short of memory for
// Patience.
func (s *Share) Answer(ctx context.Context, n int64) error {
	if n < Least {
		return nil
	}
	if err := s.Own.Acquire(ctx, min(n, MaxAnswers)); err != nil {
		return err
	}
	s.ownHeld += min(n, MaxAnswers)
	if n < Large {
		return nil
	}
	return s.await(ctx, n)
}

// List takes cost bytes for a listing that has been read, if the listing is large.
func (s *Share) List(ctx context.Context, cost int64) error {
	if cost < Large {
		return nil
	}
	if err := s.Own.Acquire(ctx, cost); err != nil {
		return err
	}
	s.ownHeld += cost
	return s.await(ctx, cost)
}

// ListedCost returns the cost in bytes of a name of n bytes in a listing. It counts the name as
// read and in the message, the entries of both lists, and about 50 bytes around the name in the
// message.
func ListedCost(n int) int64 { return 2*int64(n) + 128 }

// Body takes n bytes for a body that is being read, or fails immediately. It does not wait, because
// bodies that wait for more memory would each hold the memory that the others wait for.
func (s *Share) Body(n int64) error {
	if !s.Own.TryAcquire(n) {
		return errShortOfMemory(n)
	}
	s.ownHeld += n
	if s.Total.Take(s.Owner, n) != nil {
		s.Release()
		return errShortOfMemory(n)
	}
	s.held += n
	return nil
}

// await takes n bytes of the agent's memory. If it fails, it releases all memory that the answer
// holds.
func (s *Share) await(ctx context.Context, n int64) error {
	if n > s.Total.Max {
		s.Release()
		return noMemory("an answer of %d bytes is larger than the memory that this agent has for answers, %d bytes: "+
			"read a file in blocks (fs/open, fs/readBlock), or give the agent more memory", n, s.Total.Max)
	}
	if err := s.Total.takeSoon(ctx, s.Owner, n, errShortOfMemory); err != nil {
		s.Release()
		return err
	}
	s.held += n
	return nil
}

// Hold takes n bytes for what a request reads before its answer is made, until release is called. It
// takes half of the memory if that is less, because the request needs its memory in any case.
func (m *Memory) Hold(ctx context.Context, owner string, n int64) (release func(), err error) {
	n = min(n, m.Max/2)
	if err := m.takeSoon(ctx, owner, n, errShortOfMemory); err != nil {
		return nil, err
	}
	return func() { m.Give(owner, n) }, nil
}

// Release gives all memory of the answer back.
func (s *Share) Release() {
	if s.ownHeld > 0 {
		s.Own.Release(s.ownHeld)
	}
	if s.held > 0 {
		s.Total.Give(s.Owner, s.held)
	}
	s.ownHeld, s.held = 0, 0
}

func errShortOfMemory(n int64) error {
	return noMemory("no memory for %d more bytes of answers that clients have not read yet", n)
}

// noMemory is an error whose reason programs can read (rpc.md 5.3).
func noMemory(format string, args ...any) error {
	e := protocol.Errorf(protocol.CodeInternal, format, args...)
	e.Data = []byte(`{"reason":"memory"}`)
	return e
}
