package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/rpc"
)

// maxAsked is how many questions of a session by one method may wait for its client. Processes of
// the session cause them, so there can be many; those about networks take no room from those about
// commands, of which package approval asks no more at once.
const maxAsked = 256

var (
	// errNobody is why a question was not asked, or has no answer any more.
	errNobody = errors.New("no client is attached to the session")
	errAsked  = fmt.Errorf("%d questions wait for the client, as many as may wait", maxAsked)
)

// question is one that waits for its answer.
type question struct {
	method string
	cancel context.CancelCauseFunc
}

// asker is what [Session.ask] is.
type asker func(ctx context.Context, method string, params, result any) error

// ask asks the attached client, and reads its answer into result as [rpc.Peer.Call] does. It
// returns at once where nobody is attached, and as soon as that client is attached no more: a
// client that comes back is not asked again. The context says how long to wait; but as long as
// the client does not read, ask cannot return.
func (s *Session) ask(ctx context.Context, method string, params, result any) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q := &question{method, cancel}
	peer, err := s.asks(q)
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		delete(s.asked, q)
		s.mu.Unlock()
	}()
	return peer.Call(ctx, method, params, result)
}

// asks enters a question, and returns who is to answer it.
func (s *Session) asks(q *question) (*rpc.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := s.peer.Load()
	same := 0
	for other := range s.asked {
		if other.method == q.method {
			same++
		}
	}
	switch {
	case peer == nil || s.ended:
		return nil, errNobody
	case same >= maxAsked:
		return nil, errAsked
	}
	if s.asked == nil {
		s.asked = map[*question]struct{}{}
	}
	s.asked[q] = struct{}{}
	return peer, nil
}

// muteLocked ends the notifications to the client, and the wait for its answers.
func (s *Session) muteLocked() {
	s.peer.Store(nil)
	for q := range s.asked {
		q.cancel(errNobody)
	}
}
