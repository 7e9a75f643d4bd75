package client

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/execagent/execagent/protocol"
)

// named is the feature that this file needs of a server.
const named = "named sessions"

const (
	// watchWait is how long one request asks the server to wait for something new.
	watchWait = 5 * time.Minute
	// watchBytes is how many bytes of output one request asks for.
	watchBytes = 256 << 10
)

// Named asks for the session with that name, see [Config.SessionName].
func Named(name string) Option { return func(o *dialOptions) { o.config.SessionName = name } }

// wish sets the session that the first handshake asks for.
func (cfg *Config) wish(params *protocol.InitializeParams) {
	if cfg.SessionName != "" {
		params.SessionName = &cfg.SessionName
	}
	params.Existing, params.Take = cfg.Existing, cfg.Take
	if cfg.Retain != nil {
		params.RetainMs = new(uint64(max(*cfg.Retain, 0).Milliseconds()))
	}
}

// granted refuses an answer of a server that ignored these wishes: it opened an ordinary
// session, which ends soon after its connection.
func (cfg *Config) granted(r *protocol.InitializeResult) error {
	switch {
	case r.Session == nil && (cfg.SessionName != "" || cfg.Retain != nil):
		return &UnsupportedError{Feature: named}
	case r.Session != nil && cfg.SessionName != "" && r.Session.Name != cfg.SessionName:
		return protocolErrorf("exec-server opened the session %.128q instead of %s", r.Session.Name, cfg.SessionName)
	}
	return nil
}

// Session describes the session that the server opened; nil if it has no name
// and [Config.Retain] was not given.
func (c *Client) Session() *protocol.OpenedSession { return c.opened }

// Sessions lists the sessions with a name of this client's principal, oldest first. The
// names are valid; the rest of the list is not checked. It needs the server's
// namedSessions.
func (c *Client) Sessions(ctx context.Context) ([]protocol.ListedSession, error) {
	if err := c.requireNamed(ctx); err != nil {
		return nil, err
	}
	var r protocol.SessionListResult
	if err := c.replay(ctx, protocol.MethodSessionList, &protocol.SessionListParams{}, &r); err != nil {
		return nil, err
	}
	for i, s := range r.Sessions {
		// Names are printed, and offered to a shell, as they are.
		if !protocol.ValidSessionName(s.Name) {
			return nil, protocolErrorf("session/list answered with the name %.128q in sessions[%d]", s.Name, i)
		}
	}
	return r.Sessions, nil
}

// EndSession ends a session with a name: its processes are killed, its retained output is
// dropped, and the name is free. An attached client fails, also this one if the session is
// its own.
func (c *Client) EndSession(ctx context.Context, sessionID string) error {
	if err := c.requireNamed(ctx); err != nil {
		return err
	}
	for sent := false; ; {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		err = l.called(ctx, protocol.MethodSessionEnd, &protocol.SessionParams{SessionID: sessionID}, nil)
		if isLoss(err) {
			sent = sent || !unsent(err)
			continue
		}
		if _, refused := errors.AsType[*ServerError](err); refused && sent {
			return nil // the request whose answer was lost ended it
		}
		return err
	}
}

func (c *Client) requireNamed(ctx context.Context) error {
	return c.require(ctx, named, func(c *protocol.Capabilities) bool { return c.NamedSessions })
}

// Observer looks into a session with a name, also while another client is attached to it.
// It takes no events away from that client, and never delays it. The session must be one
// of [Client.Sessions]; for others the error is a [ServerError].
type Observer struct {
	client *Client
	id     string
}

// Observe returns an observer of a session.
func (c *Client) Observe(sessionID string) *Observer { return &Observer{client: c, id: sessionID} }

// Processes lists the processes of the session, oldest first.
func (o *Observer) Processes(ctx context.Context) ([]protocol.ListedProcess, error) {
	if err := o.client.requireNamed(ctx); err != nil {
		return nil, err
	}
	var r protocol.ListResult
	err := o.client.replay(ctx, protocol.MethodProcessList, &protocol.ListParams{SessionID: &o.id}, &r)
	return r.Processes, err
}

// Follow yields the output of a process after event number after, with the times at which
// it was read. It ends with the process or, unless wait is true, with the retained output.
// Output that the server no longer has is a gap in the numbers. An error ends the
// sequence.
func (o *Observer) Follow(ctx context.Context, processID string, after uint64, wait bool) iter.Seq2[*protocol.ReadResult, error] {
	return func(yield func(*protocol.ReadResult, error) bool) {
		params := protocol.ReadParams{ProcessID: processID, MaxBytes: new(uint64(watchBytes)), Timestamps: true}
		if wait {
			params.WaitMs = new(uint64(watchWait.Milliseconds()))
		}
		for {
			params.AfterSeq = &after
			r, err := o.read(ctx, params)
			if err != nil {
				yield(nil, err)
				return
			}
			last := r.Closed && len(r.Chunks) == 0 || !wait && len(r.Chunks) == 0
			if (last || r.NextSeq > after+1) && !yield(r, nil) || last {
				return
			}
			after = max(after, r.NextSeq-1)
		}
	}
}

// Wait waits for the exit of a process and returns its code, 128+n after signal n. It takes
// no output.
func (o *Observer) Wait(ctx context.Context, processID string) (exitCode int, err error) {
	params := protocol.ReadParams{ProcessID: processID, ExitOnly: true, WaitMs: new(uint64(watchWait.Milliseconds()))}
	for {
		r, err := o.read(ctx, params)
		switch {
		case err != nil:
			return 0, err
		case r.Exited && r.ExitCode == nil:
			return 0, protocolErrorf("process/read answered that the process has exited, without its code")
		case r.Exited:
			return *r.ExitCode, nil
		}
	}
}

func (o *Observer) read(ctx context.Context, params protocol.ReadParams) (*protocol.ReadResult, error) {
	if err := o.client.requireNamed(ctx); err != nil {
		return nil, err
	}
	params.SessionID = &o.id
	r := new(protocol.ReadResult)
	if err := o.client.replay(ctx, protocol.MethodProcessRead, &params, r); err != nil {
		return nil, err
	}
	if r.NextSeq == 0 {
		return nil, protocolErrorf("process/read answered with nextSeq 0")
	}
	return r, nil
}

// Signal sends a signal to a process group, as [Process.Signal] does.
func (o *Observer) Signal(ctx context.Context, processID string, signal protocol.Signal) error {
	if err := o.client.requireNamed(ctx); err != nil {
		return err
	}
	params := protocol.SignalParams{SessionID: &o.id, ProcessID: processID, Signal: signal}
	return o.client.Call(ctx, protocol.MethodProcessSignal, &params, nil)
}

// Terminate kills a process group and the rest of its session. It reports whether the process had
// not exited. It is repeated after a lost connection, because killing twice does no harm.
func (o *Observer) Terminate(ctx context.Context, processID string) (running bool, err error) {
	if err := o.client.requireNamed(ctx); err != nil {
		return false, err
	}
	var r protocol.TerminateResult
	params := protocol.TerminateParams{SessionID: &o.id, ProcessID: processID}
	err = o.client.replay(ctx, protocol.MethodProcessTerminate, &params, &r)
	return r.Running, err
}
