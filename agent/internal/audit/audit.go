// Package audit logs who uses an agent and for what: which client has which session, from where,
// and which programs run in it. It logs nothing that could be secret. A session is named by the
// beginning of its id, which is not enough to resume the session. A command is named by its
// program, without arguments and variables: by the program's name, or by its path if rules decided
// about the path.
//
//	level  message            fields
//	info   session attached   session, client, principal, remote, resumed
//	info   session detached   session, client, principal, remote, seconds, running
//	info   session ended      session, principal, reason
//	info   more session lines   principal, message, count, interval
//	info   command decided    session, kind, program, pid, rule, outcome
//	info   more commands decided  session, outcome, count
//	debug  process started    session, program, pid, tty, sandbox
//	debug  process ended      session, program, pid, exit_code or killed, seconds
//	debug  snapshot started   session, program, pid, sandbox
//	debug  snapshot ended     session, program, pid, seconds
//
// The field principal is the owner of the shares that a session uses up, see package share.
//
// The three lines about sessions and clients are bounded for each owner, and the lines about
// commands for each session and outcome, see package loglines. Further lines about sessions and
// clients are logged at the level debug.
//
// A client counts as attached from its first request for more than the agent's status. Clients that
// only ask every few seconds whether the agent serves are logged at the level debug, and so are
// their sessions.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/loglines"
	"github.com/execagent/execagent/rpc"
)

// maxProgram and maxPrincipal bound the logged part of a program's name and of an owner, in bytes.
const maxProgram, maxPrincipal = 64, 128

// An AgentLog logs the events of all sessions of an agent.
type AgentLog struct {
	log   *slog.Logger
	limit loglines.Limit // kinds are a message and an owner
}

// New returns the log of an agent, which Close ends.
func New(log *slog.Logger) *AgentLog {
	a := &AgentLog{log: log}
	a.limit.More = func(kind string, left int) {
		message, owner, _ := strings.Cut(kind, "\n")
		log.Info("more session lines", "principal", owner, "message", message, "count", left, "interval", loglines.Interval)
	}
	return a
}

// Close logs how many lines were left out.
func (a *AgentLog) Close() { a.limit.Flush() }

// Session returns the log of a session that an owner has made. name is the beginning of its id,
// see Label.
func (a *AgentLog) Session(name, owner string) *SessionLog {
	s := &SessionLog{agent: a, name: name, owner: loglines.Clip(owner, maxPrincipal)}
	s.decided.More = func(outcome string, left int) {
		a.log.Info("more commands decided", "session", name, "outcome", outcome, "count", left, "interval", loglines.Interval)
	}
	return s
}

// tell logs a line about a session or client of an owner. Lines about those who only look, and
// lines beyond the bound, are for debug.
func (a *AgentLog) tell(used bool, message, owner string, attrs ...any) {
	level := slog.LevelDebug
	if used && a.limit.Allow(message+"\n"+owner) {
		level = slog.LevelInfo
	}
	a.log.Log(context.Background(), level, message, attrs...)
}

// A SessionLog logs the events of one session.
type SessionLog struct {
	agent       *AgentLog
	name, owner string

	used    atomic.Bool // a client has asked for more than the status
	decided loglines.Limit
}

// Name returns the name of the session in the log.
func (s *SessionLog) Name() string { return s.name }

// Ended logs that the session has ended, and why.
func (s *SessionLog) Ended(reason string) {
	s.decided.Flush()
	s.agent.tell(s.used.Load(), "session ended", s.owner, "session", s.name, "principal", s.owner, "reason", reason)
}

// Decided logs the outcome for a command that rules have not simply allowed.
func (s *SessionLog) Decided(outcome string, attrs ...any) {
	if s.decided.Allow(outcome) {
		s.agent.log.Info("command decided", append(append([]any{"session", s.name}, attrs...), "outcome", outcome)...)
	}
}

// Label returns a name for a session. The whole id must not be logged, because it is enough to
// resume the session.
func Label(id string) string { return id[:8] }

// Place returns the place of the other end of a connection, see [rpc.Located], or else the name of
// the connection, as for a stream of the relay.
func Place(conn rpc.Conn) string {
	switch known := conn.(type) {
	case rpc.Located:
		return known.Remote()
	case fmt.Stringer:
		return known.String()
	}
	return ""
}

// A ClientLog logs the events of one client of a session.
type ClientLog struct {
	session *SessionLog
	owner   string
	attrs   []any
	resumed bool
	since   time.Time
	used    atomic.Bool
}

// Attach records that a client has the session. name is the name that the client gives itself.
// Nothing is logged before Use or Detach.
func (s *SessionLog) Attach(name, owner, remote string, resumed bool) *ClientLog {
	owner = loglines.Clip(owner, maxPrincipal)
	return &ClientLog{
		session: s, owner: owner, resumed: resumed, since: time.Now(),
		attrs: []any{"session", s.name, "client", name, "principal", owner, "remote", remote},
	}
}

// Use records a request for more than the status of the agent. The first such request logs the
// client as attached.
func (c *ClientLog) Use() {
	if c.used.Load() || c.used.Swap(true) {
		return
	}
	c.session.used.Store(true)
	c.session.agent.tell(true, "session attached", c.owner, append(c.attrs, "resumed", c.resumed)...)
}

// Detach logs that the client has lost the session. running is the number of processes that run in
// the session.
func (c *ClientLog) Detach(running int) {
	c.session.agent.tell(c.used.Load(), "session detached", c.owner, append(c.attrs, "seconds", seconds(c.since), "running", running)...)
}

// A ProcessLog logs the events of one process. A nil *ProcessLog logs nothing.
type ProcessLog struct {
	session *SessionLog
	what    string
	attrs   []any
	since   time.Time
	ended   atomic.Bool
}

// Started logs the start of a program, with the layers of its sandbox.
func (s *SessionLog) Started(program string, pid int, tty bool, layers []string) *ProcessLog {
	return s.started("process", program, pid, "tty", tty, "sandbox", layers)
}

// Capturing logs that a shell runs startup files for a snapshot.
func (s *SessionLog) Capturing(shell string, pid int, layers []string) *ProcessLog {
	return s.started("snapshot", shell, pid, "sandbox", layers)
}

func (s *SessionLog) started(what, program string, pid int, more ...any) *ProcessLog {
	if !s.agent.log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	program = loglines.Clip(filepath.Base(program), maxProgram)
	p := &ProcessLog{session: s, what: what, since: time.Now(), attrs: []any{"session", s.name, "program", program, "pid", pid}}
	s.agent.log.Debug(what+" started", append(p.attrs, more...)...)
	return p
}

// Exited logs the exit code, which is 128+n after signal n.
func (p *ProcessLog) Exited(code int) { p.end("exit_code", code) }

// Killed logs that the agent has killed the process, with its session.
func (p *ProcessLog) Killed() { p.end("killed", true) }

// Captured logs that the startup files have ended. It does not log whether there is a snapshot; the
// caller that wanted the snapshot reports the result.
func (p *ProcessLog) Captured() { p.end() }

func (p *ProcessLog) end(how ...any) {
	if p == nil || p.ended.Swap(true) {
		return
	}
	p.session.agent.log.Debug(p.what+" ended", append(append(p.attrs, how...), "seconds", seconds(p.since))...)
}

// seconds returns the time since an event in seconds, rounded to milliseconds.
func seconds(since time.Time) float64 { return time.Since(since).Round(time.Millisecond).Seconds() }
