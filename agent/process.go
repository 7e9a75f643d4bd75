package agent

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/internal/metrics"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// startResult lets the events of a process flow once its start was answered. If
// they came earlier, a client would have to keep events of processes that it does
// not know yet (rpc.md 2.6).
type startResult struct {
	protocol.StartResult
	process *process // nil: another answer to the same start lets them flow
}

func (r *startResult) Sent() {
	if r.process != nil {
		r.process.Begin()
		r.process.approvals.Begin()
	}
}

func (c *connection) startProcess(ctx context.Context, p protocol.StartParams) (*startResult, error) {
	if answer, err := c.session.started(ctx, p.ProcessID, p.StartID); answer != nil || err != nil {
		return answer, err
	}
	l, err := c.newLaunch(&p)
	if err != nil {
		return nil, err
	}
	started, err := c.session.start(ctx, c, l)
	if err != nil {
		c.agent.short.Note(c.agent.cfg.Logger, "a process cannot be started", err)
		return nil, startError(err)
	}
	return &startResult{StartResult: started.answer, process: started}, nil
}

// answer is the answer to a start that has succeeded.
func (l *launch) answer() protocol.StartResult {
	r := protocol.StartResult{ProcessID: l.params.ProcessID, SandboxType: protocol.SandboxNone, Limits: l.held}
	if l.box != nil {
		r.SandboxType, r.SandboxLayers = protocol.SandboxLinuxSeccomp, l.box.Layers
	}
	if l.network != nil && l.free {
		r.Network = protocol.NetworkAdvisory
	}
	if l.plan.IsPending() {
		r.Approval = protocol.ApprovalPending
	}
	return r
}

// newLaunch checks a start. It takes nothing from the host yet.
func (c *connection) newLaunch(p *protocol.StartParams) (*launch, error) {
	a := c.agent
	if !p.Builtin { // checkBuiltin judges tools
		var err error
		if p.Sandbox, err = a.sandboxOf(p.Sandbox); err != nil {
			a.metrics.Refused(metrics.RefusedByRequest)
			return nil, err
		}
	}
	dir, err := p.Cwd.Native()
	if err != nil && p.Sandbox != nil {
		return nil, withKind(sandboxPreparation, protocol.InvalidParams("cwd: %v", err))
	}
	if err != nil {
		return nil, protocol.InvalidParams("cwd: %v", err)
	}
	proxy, err := networkPlan(p, c.agent.cfg.TransparentTCP)
	if err != nil {
		return nil, err
	}
	if proxy != nil && a.cfg.offline() {
		proxy.Transparent = false
	}
	env, err := environ(p, a.cfg.Environ)
	if err != nil {
		return nil, protocol.InvalidParams("%v", err)
	}
	if err := c.checkBuiltin(p); err != nil {
		return nil, err
	}
	env = a.tool.Before(env)
	plan, err := c.session.desk.Decide(
		approval.Request{Argv: p.Argv, Env: env, Dir: dir, Builtin: p.Builtin, Approval: p.ExecApproval},
		approval.Host{Operator: a.rules, CanAsk: c.approves, CanJudge: a.sandboxes.judges})
	if err != nil {
		return nil, err
	}
	snapshot, err := snapshotKey(p, plan)
	if err != nil {
		return nil, err
	}
	l := &launch{
		session: c.session, params: p, plan: plan, proxy: proxy, snapshot: snapshot, ask: c.session.ask,
		spec: a.spec(p, dir, env, plan, c.session.owner),
	}
	if c.refusals || a.cfg.TellRefusals {
		l.refused = &refused{}
	}
	return l, runAs(p, &l.spec)
}

// spec describes the process of a start as it would be without a sandbox.
func (a *Agent) spec(p *protocol.StartParams, dir string, env []string, plan *approval.Plan, owner string) procs.Spec {
	spec := procs.Spec{
		Argv:        p.Argv,
		Arg0:        p.Arg0,
		Dir:         dir,
		Env:         env,
		TTY:         p.TTY,
		Stdin:       p.PipeStdin,
		LoginShell:  a.host.loginShell,
		RetainBytes: a.cfg.RetainBytes,
		Budget:      a.budget.For(owner),
		Reaper:      a.cfg.Reaper,
		Guard:       a.cfg.Guard,
	}
	if p.Builtin {
		spec.Argv, spec.Arg0 = filecopy.ToolCommand(p.Argv)
		spec.Bulk = true
		spec.RetainBytes = max(spec.RetainBytes, filecopy.ToolRetain)
	} else {
		plan.Pin(&spec)
	}
	if p.TimeoutMs != nil {
		spec.Timeout = milliseconds(*p.TimeoutMs)
	}
	if p.MaxOutputBytes != nil {
		spec.MaxOutput = *p.MaxOutputBytes
	}
	if p.Rows != nil {
		spec.Size.Rows = *p.Rows
	}
	if p.Cols != nil {
		spec.Size.Cols = *p.Cols
	}
	return spec
}

// checkBuiltin refuses the start of a built-in tool that does not exist, or that
// contradicts the rest of the request.
func (c *connection) checkBuiltin(p *protocol.StartParams) error {
	switch {
	case !p.Builtin:
		return nil
	case !c.agent.cfg.Confines:
		return protocol.InvalidParams("builtin: this program has no tools")
	case !filecopy.IsTool(p.Argv[0]):
		return protocol.InvalidParams("builtin: there is no tool %.64q", p.Argv[0])
	case c.agent.cfg.confinesAll():
		return errTool
	case p.Sandbox != nil:
		return protocol.InvalidParams("builtin: a tool cannot be confined: sandbox has to be absent")
	case p.TTY:
		return protocol.InvalidParams("builtin: a tool has no terminal: tty has to be false")
	case p.Arg0 != nil:
		return protocol.InvalidParams("builtin: a tool has no other name: arg0 has to be absent")
	}
	return checkTool(p)
}

// startError gives every failed start the code internal, also where a file
// request would have another code (rpc.md 2.2).
func startError(err error) error {
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		return err
	}
	if full, ok := errors.AsType[*share.Error](err); ok {
		return full
	}
	return caused(protocol.Errorf(protocol.CodeInternal, "%s", errorText(err)), err)
}

// Kinds of failed starts. The data of the error of a process/start has the kind (rpc.md 4.3).
const (
	sandboxPreparation = "sandboxPreparation" // the sandbox names something that cannot be on this host
	sandboxUnavailable = "sandboxUnavailable" // this agent has no such sandbox
)

// withKind returns the error with its kind.
func withKind(kind string, e *protocol.Error) *protocol.Error {
	return &protocol.Error{Code: e.Code, Message: e.Message, Data: []byte(`{"kind":"` + kind + `"}`), Err: e.Err}
}

// spawnError returns an error of [procs.Start] with its kind. As with the reference, a search that
// fails on a terminal, or for an empty name, is of no kind of its own.
func spawnError(spec *procs.Spec, err error) error {
	kind := "spawnFailed"
	at, ok := errors.AsType[*fs.PathError](err)
	searched := spec.Argv[0] == "" || spec.TTY && !strings.Contains(spec.Argv[0], "/")
	switch {
	case !ok || at.Op != "chdir" && (at.Op != "exec" || searched):
	case errors.Is(at, fs.ErrNotExist):
		kind = "spawnNotFound"
	case errors.Is(at, fs.ErrPermission):
		kind = "spawnPermissionDenied"
	}
	return withKind(kind, WireError(startError(err)))
}

// environ applies the policy of a request to the agent's environment.
func environ(p *protocol.StartParams, inherited []string) ([]string, error) {
	policy := envPolicy(p.EnvPolicy)
	if policy != nil {
		policy.OtherUser = p.RunAs != nil
	}
	if err := policy.Check(inherited, p.Env); err != nil {
		return nil, err
	}
	return policy.Environ(inherited, p.Env), nil
}

func envPolicy(p *protocol.EnvPolicy) *procs.EnvPolicy {
	if p == nil {
		return nil
	}
	return &procs.EnvPolicy{
		Inherit:               procs.Inherit(p.Inherit),
		IgnoreDefaultExcludes: p.IgnoreDefaultExcludes,
		Exclude:               p.Exclude,
		Set:                   p.Set,
		IncludeOnly:           p.IncludeOnly,
	}
}

// readResult gives back its share of memory when it has been sent.
type readResult struct {
	protocol.ReadResult
	share answers.Share
}

func (r *readResult) Sent() { r.share.Release() }

func (c *connection) readProcess(ctx context.Context, p protocol.ReadParams) (*readResult, error) {
	s, err := c.sessionFor(p.SessionID)
	if err != nil {
		return nil, err
	}
	target, err := s.process(ctx, p.ProcessID)
	if err != nil {
		return nil, err
	}
	if target == nil {
		return nil, unknownProcess(p.ProcessID)
	}
	var after uint64
	if p.AfterSeq != nil {
		after = *p.AfterSeq
	}
	ready, await := target.Ready(after), func(ctx context.Context) error { return target.Wait(ctx, after) }
	if p.ExitOnly {
		ready, await = !target.ExitedAt().IsZero(), target.WaitExit
	}
	if p.WaitMs != nil && *p.WaitMs > 0 && !ready {
		// From here on the read delays no other request, because it may wait
		// for the effect of a later request.
		if err := rpc.Leave(ctx); err != nil {
			return nil, err
		}
		wait, cancel := context.WithTimeout(ctx, milliseconds(*p.WaitMs))
		_ = await(wait) // when the time is up, the client gets the output so far
		cancel()
	}
	kept := target.Kept()
	if p.ExitOnly {
		kept, after, p.MaxBytes = 0, math.MaxUint64, nil
	}
	r := &readResult{share: c.share(c.answers)}
	// The answer keeps chunks in memory that the process may have dropped by then.
	if err := r.share.Answer(ctx, min(kept, answers.MaxAnswers/2)); err != nil {
		return nil, err
	}
	snapshot := target.Read(after, p.MaxBytes)
	r.ReadResult = protocol.ReadResult{
		Chunks:  make([]protocol.OutputChunk, len(snapshot.Chunks)),
		NextSeq: snapshot.NextSeq,
		Exited:  snapshot.Exited,
		Closed:  snapshot.Closed,
	}
	for i, chunk := range snapshot.Chunks {
		r.Chunks[i] = protocol.OutputChunk{Seq: chunk.Seq, Stream: chunk.Stream.String(), Chunk: chunk.Data, Omitted: chunk.Omitted}
		if p.Timestamps {
			r.Chunks[i].AtMs = new(chunk.AtMs)
		}
	}
	if snapshot.Exited {
		r.ExitCode = new(snapshot.ExitCode)
		r.SandboxDenied = target.sandboxDenied(snapshot.ExitCode)
		r.Ending = protocol.Ending(snapshot.Ending)
		if c.refusals {
			s.gather(target, snapshot.ExitCode)
			r.Refusals = target.refused.all()
		}
	}
	return r, nil
}

// milliseconds returns n milliseconds, or the longest duration if n would
// overflow.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

func unknownProcess(id string) error {
	return protocol.InvalidRequest("unknown process id %.256s", id)
}

func (c *connection) writeProcess(ctx context.Context, p protocol.WriteParams) (*protocol.WriteResult, error) {
	target, err := c.session.process(ctx, p.ProcessID)
	if err != nil {
		return nil, err
	}
	if target == nil {
		return &protocol.WriteResult{Status: protocol.WriteUnknownProcess}, nil
	}
	if err := ctx.Err(); err != nil {
		// The connection is lost, so the client will repeat all writes that were
		// not answered. Do not write now: an earlier write that failed in the
		// same way would be repeated and come after this one.
		return nil, err
	}
	status, err := target.TryWrite(p.WriteID, p.Chunk)
	if errors.Is(err, procs.ErrStdinFull) {
		if err := rpc.Block(ctx); err != nil {
			return nil, err
		}
		status, err = target.Write(ctx, p.WriteID, p.Chunk)
	}
	if status == procs.Accepted && err == nil {
		c.agent.metrics.Input(len(p.Chunk))
	}
	return writeResult(status, err)
}

func (c *connection) closeStdin(ctx context.Context, p protocol.ProcessParams) (*protocol.WriteResult, error) {
	target, err := c.session.process(ctx, p.ProcessID)
	if err != nil {
		return nil, err
	}
	if target == nil {
		return &protocol.WriteResult{Status: protocol.WriteUnknownProcess}, nil
	}
	status, err := target.CloseStdin()
	if errors.Is(err, procs.ErrTTY) {
		return nil, protocol.InvalidParams("processId: %.256s runs in a terminal: write 0x04 to end its input", p.ProcessID)
	}
	return writeResult(status, err)
}

func writeResult(status procs.WriteStatus, err error) (*protocol.WriteResult, error) {
	if errors.Is(err, procs.ErrStdinGone) {
		return nil, protocol.Errorf(protocol.CodeInternal, "writing to the stdin of a process that has exited")
	}
	if errors.Is(err, procs.ErrStdinCut) {
		return nil, protocol.InvalidRequest("%v: send that write again, with its writeId", err)
	}
	if err != nil {
		return nil, err
	}
	if status == procs.StdinClosed {
		return &protocol.WriteResult{Status: protocol.WriteStdinClosed}, nil
	}
	return &protocol.WriteResult{Status: protocol.WriteAccepted}, nil
}

func (c *connection) resizeProcess(ctx context.Context, p protocol.ResizeParams) (protocol.Empty, error) {
	target, err := c.session.process(ctx, p.ProcessID)
	if err != nil {
		return protocol.Empty{}, err
	}
	if target == nil {
		return protocol.Empty{}, unknownProcess(p.ProcessID)
	}
	err = target.Resize(procs.Winsize{Rows: p.Rows, Cols: p.Cols})
	if errors.Is(err, procs.ErrNotTTY) {
		err = protocol.InvalidParams("processId: %.256s has no terminal", p.ProcessID)
	}
	return protocol.Empty{}, err
}

// signals are the signals by the wire's names.
var signals = map[protocol.Signal]syscall.Signal{
	protocol.SignalInterrupt:    syscall.SIGINT,
	protocol.SignalHangup:       syscall.SIGHUP,
	protocol.SignalQuit:         syscall.SIGQUIT,
	protocol.SignalTerminate:    syscall.SIGTERM,
	protocol.SignalKill:         syscall.SIGKILL,
	protocol.SignalUser1:        syscall.SIGUSR1,
	protocol.SignalUser2:        syscall.SIGUSR2,
	protocol.SignalStop:         syscall.SIGSTOP,
	protocol.SignalContinue:     syscall.SIGCONT,
	protocol.SignalWindowChange: syscall.SIGWINCH,
}

func (c *connection) signalProcess(ctx context.Context, p protocol.SignalParams) (protocol.Empty, error) {
	s, err := c.sessionFor(p.SessionID)
	if err != nil {
		return protocol.Empty{}, err
	}
	target, err := s.process(ctx, p.ProcessID)
	switch {
	case err != nil:
		return protocol.Empty{}, err
	case target != nil && target.approvals.Pending():
		target.kill() // the command does not run yet, so it cannot take a signal
	case target != nil && p.SessionID == nil && target.hasExited():
		// As with the reference, this reaches nothing that the process has left behind. A client that
		// names another session wants to end what the process list shows there.
	case target != nil:
		target.Signal(signals[p.Signal])
	case p.Signal != protocol.SignalInterrupt:
		// The reference knows only SIGINT, and ignores it without a target; it
		// refuses all other signals. So a client of the reference finds no
		// difference.
		return protocol.Empty{}, protocol.InvalidParams("signal: %s for an unknown process id %.256s", p.Signal, p.ProcessID)
	}
	return protocol.Empty{}, nil
}

func (c *connection) terminateProcess(ctx context.Context, p protocol.TerminateParams) (*protocol.TerminateResult, error) {
	s, err := c.sessionFor(p.SessionID)
	if err != nil {
		return nil, err
	}
	running, err := s.terminate(ctx, p.ProcessID)
	return &protocol.TerminateResult{Running: running}, err
}

func (c *connection) listProcesses(ctx context.Context, p protocol.ListParams) (*protocol.ListResult, error) {
	s, err := c.sessionFor(p.SessionID)
	if err != nil {
		return nil, err
	}
	r := &protocol.ListResult{Processes: []protocol.ListedProcess{}}
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		exited, exitCode, closed, nextSeq := p.State()
		listed := protocol.ListedProcess{
			ProcessID:   p.id,
			Argv:        p.Argv(),
			PID:         p.PID(),
			TTY:         p.TTY(),
			StartedAtMs: p.StartedAt().UnixMilli(),
			Exited:      exited,
			Closed:      closed,
			NextSeq:     nextSeq,

			SandboxLayers: p.box.Names(),
		}
		if exited {
			listed.ExitCode, listed.ExitedAtMs = new(exitCode), new(p.ExitedAt().UnixMilli())
		}
		r.Processes = append(r.Processes, listed)
	}
	return r, nil
}
