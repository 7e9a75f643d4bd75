package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/rpc"
)

// maxAsked is how many questions of a session by one method may wait for its client. Processes of
// the session cause them, so there can be many. Questions about networks take no room from
// questions about commands, of which package approval asks no more at once.
const maxAsked = 256

var errAsked = fmt.Errorf("%d questions wait for the client, as many as may wait", maxAsked)

// question is a question that waits for its answer.
type question struct {
	method string
	cancel context.CancelCauseFunc
}

// asker is the type of [Session.ask].
type asker func(ctx context.Context, method string, params, result any) error

// ask asks the attached client, and reads its answer into result as [rpc.Peer.Call] does. It
// fails with [approval.ErrDetached] at once if no client is attached, and as soon as the client is
// detached: a client that comes back is not asked again. The context bounds the wait; but while the
// client does not read, ask cannot return.
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
	err = peer.Call(ctx, method, params, result)
	// The end of the connection is known here before the session knows it, or after.
	if errors.Is(err, rpc.ErrClosed) || err != nil && s.peer.Load() != peer {
		return approval.ErrDetached
	}
	return err
}

// asks enters a question, and returns the peer that must answer it.
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
		return nil, approval.ErrDetached
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
		q.cancel(approval.ErrDetached)
	}
}
