package agent

import (
	"context"

	"golang.org/x/sync/semaphore"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/httpclient"
	"github.com/execagent/execagent/protocol"
)

// What is read whole, a file, a listing or an HTTP body, takes memory until the
// client has it. The limits are in bytes of content; the message around that of
// a file or body takes 4/3 as much again, that around a listing is counted.
const (
	// largeFile is from where on a file or listing counts.
	largeFile = 1 << 20
	// bodyStep is how a body counts, whose length nobody has to say.
	bodyStep = 1 << 20
	// maxFiles, which listings take from too, and maxBodies are for one
	// connection. They hold the largest file and body there can be, and the
	// largest listing.
	maxFiles  = fsops.MaxFileSize + 256<<20
	maxBodies = httpclient.MaxBufferedBody + 256<<20
	// maxContent is for all connections.
	maxContent = 1 << 30
)

// share is the memory that one answer holds.
type share struct {
	own   *semaphore.Weighted // of the connection
	total *semaphore.Weighted // of the agent
	held  int64
}

// wait takes n bytes, after others of the connection have given theirs back.
// Where the agent is short of memory it fails: waiting for other clients would
// let one of them hold up all.
func (s *share) wait(ctx context.Context, n int64) error {
	if err := s.own.Acquire(ctx, n); err != nil {
		return err
	}
	if !s.total.TryAcquire(n) {
		s.own.Release(n)
		return errShortOfMemory(n)
	}
	s.held += n
	return nil
}

// try takes n bytes, or fails where there are none.
func (s *share) try(n int64) error {
	if !s.own.TryAcquire(n) {
		return errShortOfMemory(n)
	}
	if !s.total.TryAcquire(n) {
		s.own.Release(n)
		return errShortOfMemory(n)
	}
	s.held += n
	return nil
}

// list takes what a listing costs, if it is large.
func (s *share) list(ctx context.Context, cost int64) error {
	if cost < largeFile {
		return nil
	}
	return s.wait(ctx, cost)
}

// listedCost is what a name of n bytes costs in a listing: once as it was read
// and once in the message, which has some 50 bytes around it, and the entries
// of both lists.
func listedCost(n int) int64 { return 2*int64(n) + 128 }

// release gives everything back.
func (s *share) release() {
	s.own.Release(s.held)
	s.total.Release(s.held)
	s.held = 0
}

func errShortOfMemory(n int64) error {
	return protocol.Errorf(protocol.CodeInternal,
		"no memory for %d more bytes of answers that clients have not read yet", n)
}
