package approval

import (
	"context"
	"errors"
	"sync"

	"github.com/execagent/execagent/protocol"
)

// ErrDetached is the error of [Desk.Ask] where nobody is attached, or is no more.
var ErrDetached = errors.New("no client is attached")

const (
	// maxAsked is how many questions of a session, and maxAskedOfProcess how many of a process,
	// wait for answers at once. Further ones wait for their turn.
	maxAsked          = 256
	maxAskedOfProcess = 64
)

// Desk is where the questions of all processes of a session come. Its methods may be called at
// once.
type Desk struct {
	// Ask asks the client that is attached, and fails with ErrDetached as soon as none is.
	Ask func(ctx context.Context, method string, params, result any) error
	// Tell tells the client that is attached, if there is one. It may take as long as that
	// does not read.
	Tell func(method string, params any)
	// Note hears of each command that was refused or asked about, but for those that an earlier
	// answer decides. Nil: nobody does.
	Note func(Decision)

	once sync.Once
	turn chan struct{} // has an element for each question

	mu      sync.Mutex // guards what follows
	able    bool       // the client that came last answers questions
	changed chan struct{}
}

func (d *Desk) init() {
	d.once.Do(func() { d.turn, d.changed = make(chan struct{}, maxAsked), make(chan struct{}) })
}

// Attach says that a client has come, and whether it answers questions. It is asked what is open.
func (d *Desk) Attach(able bool) {
	d.init()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.able = able
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *Desk) now() (able bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.able, d.changed
}

// ask asks whoever is attached until somebody answers. An answer that cannot be understood
// declines.
func (d *Desk) ask(ctx context.Context, q *protocol.ExecApprovalParams) (protocol.ExecApprovalAnswer, error) {
	for {
		able, changed := d.now()
		if !able {
			return protocol.ExecApprovalAnswer{}, errUnable
		}
		var answer protocol.ExecApprovalAnswer
		err := d.Ask(ctx, protocol.MethodExecApproval, q, &answer)
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return protocol.ExecApprovalAnswer{}, context.Cause(ctx)
		case !errors.Is(err, ErrDetached):
			return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return protocol.ExecApprovalAnswer{}, context.Cause(ctx)
		}
	}
}
