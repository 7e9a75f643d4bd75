package agent

import (
	"context"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/hold"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// launch is one process/start under way, or the capture of a shell snapshot for one. It owns the
// resources that its steps take, until the process runs. Then the process keeps only the resources,
// because the request and the spec can be large and a process may be kept for long.
type launch struct {
	session  *Session
	params   *protocol.StartParams
	plan     *approval.Plan // nil: there are no rules
	proxy    *egress.Plan   // nil: the request asks for no proxy
	snapshot string         // key of the shell snapshot to restore; "": none
	ask      asker          // about the network
	spec     procs.Spec
	rlimits  confine.Limits       // that the process sets for itself
	held     *protocol.HeldLimits // what holds the limits of the request; nil: it has none
	free     bool                 // confine left the process the network of the host
	resources
}

// resources are the things that a process takes from the host and the agent. Each is nil if
// the process does not need it.
type resources struct {
	box     *confine.Held   // its sandbox
	network *egress.Network // its proxy
	judged  *confine.Judged // judges the programs that it executes
	refused *refused        // what was refused to it; nil: nobody wants to know
	hold    *hold.Hold      // stops its command from running before the client has allowed it
}

// release gives all resources back, the newest first. It is called once, when nothing uses them any
// more: by a start that fails, by Session.dispose, and by the end of a capture.
func (r *resources) release() {
	r.hold.Close()
	r.judged.Close()
	r.network.Close()
	r.box.Release()
}

// questions returns the questions about programs that the process executes; nil if its programs are
// not judged.
func (r *resources) questions() *judge.Questions { return r.judged.Questions() }

// step is one step before a program can be executed. It changes the spec, and may take a resource.
type step func(*launch, context.Context) error

// The steps of a launch, in their order. A capture has no snapshot to restore. It does not wait for
// a client, because a start that waits for one restores nothing.
var (
	startSteps   = []step{(*launch).restore, (*launch).limit, (*launch).confine, (*launch).connect, (*launch).judge, (*launch).holdBack}
	captureSteps = []step{(*launch).confine, (*launch).connect, (*launch).judge}
)

// begin goes through the steps of a launch and executes the program. If it fails, it leaves nothing
// behind.
func begin[P any](ctx context.Context, l *launch, steps []step, execute func(procs.Spec) (P, error)) (running P, err error) {
	for _, step := range steps {
		if err == nil {
			err = step(l, ctx)
		}
	}
	if err == nil {
		running, err = execute(l.spec)
	}
	if err != nil {
		_ = l.spec.Cgroup.Close() // no process is in it
		l.release()
	}
	return running, err
}
