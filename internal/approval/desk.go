package approval

import (
	"context"
	"errors"
	"sync"

	"github.com/execagent/execagent/protocol"
)

// ErrDetached is the error of [Desk.Ask] if no client is attached, or not any more.
var ErrDetached = errors.New("no client is attached")

const (
	// maxAsked is how many questions of a session, and maxAskedOfProcess how many of a process,
	// wait for answers at once. Further ones wait for their turn.
	maxAsked          = 256
	maxAskedOfProcess = 64
)

// Desk handles the questions of all processes of a session. Its methods may be called at once.
type Desk struct {
	// Ask asks the attached client, and fails with ErrDetached as soon as none is attached.
	Ask func(ctx context.Context, method string, params, result any) error
	// Tell tells the attached client, if there is one. It may block while the client does
	// not read.
	Tell func(method string, params any)
	// Note is called for each command that was refused or asked about, except those that an earlier
	// answer decided. It may be nil.
	Note func(Decision)

	once sync.Once
	turn chan struct{} // has an element for each question

	mu      sync.Mutex // guards what follows
	able    bool       // the last client answers questions
	changed chan struct{}
}

func (d *Desk) init() {
	d.once.Do(func() { d.turn, d.changed = make(chan struct{}, maxAsked), make(chan struct{}) })
}

// Attach notes that a client has come; able says whether it answers questions. Open questions are
// asked again.
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

// ask asks each attached client until one answers. An unknown answer declines.
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
