package metrics

import (
	"strconv"
	"time"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// other is the value of a label for everything that has no value of its own.
const other = "other"

const ms = time.Millisecond

var (
	// requestBounds are the upper bounds of the buckets for requests: from a read of a file to a
	// command that is waited for.
	requestBounds = []time.Duration{ms / 2, ms, 5 * ms / 2, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, time.Second, 5 * time.Second, 30 * time.Second}
	// startBounds are the upper bounds of the buckets for starts of processes.
	startBounds = []time.Duration{ms, 5 * ms / 2, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, time.Second, 2500 * ms, 5 * time.Second, 10 * time.Second}
)

// An Agent has the metrics of one agent in a [Set].
type Agent struct {
	starts, refusals, exits map[string]*Counter
	startTimes              map[string]*durations
	requests                map[string]*durations
	otherRequests           *durations
	errors                  map[protocol.Code]*Counter
	otherErrors             *Counter
	input                   *Counter
	decided                 map[[2]string]*Counter // by kind of approval and outcome
	refusedBy               map[refusals.Layer]*Counter
}

// Values of the label sandbox: the means that confine a process.
const (
	none       = "none"
	namespaces = "namespaces" // a view of the file system
	supervised = "supervised" // the layer with this name in agent doctor
	landlock   = "landlock"   // only the layer with this name and a filter
	refused    = "refused"    // no program is run
)

// Values of the label reason: why a sandbox was refused.
const (
	RefusedByHost     = "host"     // the host lacks a layer
	RefusedByListener = "listener" // a command could become a client
	RefusedByCgroup   = "cgroup"   // no control group could be made
	RefusedByRequest  = "request"  // the policy is wrong
	RefusedByOther    = other      // paths that cannot be looked up, names that cannot be held
)

// Values of the label kind: how a process has exited.
const (
	exitZero    = "code0"
	exitCode    = "code"
	exitSignal  = "signal"
	exitUnknown = "unknown"
)

// NewAgent adds the metrics of an agent to s. methods are the agent's methods, and outcomes are the
// possible outcomes of its rules about commands.
func NewAgent(s *Set, methods, outcomes []string) *Agent {
	a := &Agent{
		starts: map[string]*Counter{}, startTimes: map[string]*durations{}, refusals: map[string]*Counter{}, exits: map[string]*Counter{},
		requests: map[string]*durations{}, errors: map[protocol.Code]*Counter{}, decided: map[[2]string]*Counter{},
		refusedBy: map[refusals.Layer]*Counter{},
	}
	for _, layer := range refusals.Layers() {
		a.refusedBy[layer] = s.Counter("agent_refusals_total", "What was refused to commands, by the layer that has refused it.", "layer", string(layer))
	}
	for _, means := range []string{none, namespaces, supervised, landlock, refused} {
		a.starts[means] = s.Counter("agent_processes_started_total", "Processes started, by what confines them.", "sandbox", means)
		a.startTimes[means] = s.histogram("agent_process_start_seconds", "Time to start a process with its sandbox.", startBounds, "sandbox", means)
	}
	for _, reason := range []string{RefusedByHost, RefusedByListener, RefusedByCgroup, RefusedByRequest, RefusedByOther} {
		a.refusals[reason] = s.Counter("agent_sandbox_refusals_total", "Processes and file requests whose sandbox was refused.", "reason", reason)
	}
	for _, exit := range []string{exitZero, exitCode, exitSignal, refused, exitUnknown} {
		a.exits[exit] = s.Counter("agent_process_exits_total", "Processes that have exited, by how.", "kind", exit)
	}
	a.input = s.Counter("agent_input_bytes_total", "Input that was accepted for processes.")
	const requests, took = "agent_request_duration_seconds", "Time from the arrival of a request until its answer is ready."
	for _, method := range methods {
		a.requests[method] = s.histogram(requests, took, requestBounds, "method", method)
	}
	a.otherRequests = s.histogram(requests, took, requestBounds, "method", other)
	const errors, answered = "agent_request_errors_total", "Requests answered with an error, by its code."
	for _, code := range []protocol.Code{
		protocol.CodeInvalidRequest, protocol.CodeMethodNotFound, protocol.CodeInvalidParams, protocol.CodeInternal,
		protocol.CodeNotFound, protocol.CodeSessionAttached,
	} {
		a.errors[code] = s.Counter(errors, answered, "code", strconv.Itoa(int(code)))
	}
	a.otherErrors = s.Counter(errors, answered, "code", other)
	for _, kind := range []string{protocol.ApprovalStart, protocol.ApprovalExec} {
		for _, outcome := range outcomes {
			a.decided[[2]string{kind, outcome}] = s.Counter("agent_commands_decided_total",
				"Commands that rules have refused or have asked about, by outcome.", "kind", kind, "outcome", outcome)
		}
	}
	return a
}

// Answered counts an answered request, and its error if err is not nil. method is empty for a
// message that was not a request.
func (a *Agent) Answered(method string, took time.Duration, err *protocol.Error) {
	if method != "" {
		h := a.requests[method]
		if h == nil {
			h = a.otherRequests
		}
		h.observe(took)
	}
	if err != nil {
		c := a.errors[err.Code]
		if c == nil {
			c = a.otherErrors
		}
		c.Inc()
	}
}

// Started counts a process that was started in a sandbox. box is nil if there is no sandbox.
func (a *Agent) Started(box *confine.Held, took time.Duration) {
	means := meansOf(box)
	a.starts[means].Inc()
	a.startTimes[means].observe(took)
}

func meansOf(box *confine.Held) string {
	switch {
	case box == nil:
		return none
	case box.Refusal() != nil:
		return refused
	case box.Unconfined():
		return none
	case box.Has(sandbox.MountNS):
		return namespaces
	case box.Has(sandbox.Supervised):
		return supervised
	}
	return landlock
}

// Refused counts a sandbox that was refused.
func (a *Agent) Refused(reason string) { a.refusals[reason].Inc() }

// Decided counts a command that rules have not simply allowed. kind is the kind of a question, and
// outcome one of the outcomes given to NewAgent.
func (a *Agent) Decided(kind, outcome string) { a.decided[[2]string{kind, outcome}].Inc() }

// RefusedBy counts what a layer has refused to a command.
func (a *Agent) RefusedBy(layer refusals.Layer, times int) { a.refusedBy[layer].Add(times) }

// Input counts n bytes of input for processes.
func (a *Agent) Input(n int) { a.input.Add(n) }

// maxSignal is the highest number of a signal.
const maxSignal = 64

// Exited counts the exit of a process that was started in the sandbox box. A code of 128+n means
// that signal n has killed the process. A code of -1 means that the exit was not observed.
func (a *Agent) Exited(code int, box *confine.Held) {
	kind := exitCode
	switch {
	case meansOf(box) == refused:
		kind = refused
	case code == 0:
		kind = exitZero
	case code < 0:
		kind = exitUnknown
	case code > 128 && code <= 128+maxSignal:
		kind = exitSignal
	}
	a.exits[kind].Inc()
}
