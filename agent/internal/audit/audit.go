// Package audit logs who uses an agent and for what: which client has which session, from where,
// and which programs run in it. It logs nothing that could be secret. A session is named by the
// beginning of its id, which is not enough to resume the session. A command is named by its
// program, without arguments and variables: by the program's name, or by its path if rules decided
// about the path.
//
//	level  message            fields
//	info   session attached   session, client, principal, remote, resumed
//	info   session detached   session, client, principal, remote, seconds, running
//	info   session ended      session, reason
//	info   command decided    session, kind, program, pid, rule, outcome
//	info   more commands decided  session, outcome, count
//	debug  process started    session, program, pid, tty, sandbox
//	debug  process ended      session, program, pid, exit_code or killed, seconds
//	debug  snapshot started   session, program, pid, sandbox
//	debug  snapshot ended     session, program, pid, seconds
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
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/rpc"
)

// maxProgram bounds the logged part of a program's name, in bytes.
const maxProgram = 64

// A SessionLog logs the events of one session.
type SessionLog struct {
	Log  *slog.Logger
	Name string // beginning of the id, see Label

	used    atomic.Bool // a client has asked for more than the status
	decided decided
}

// level returns the level of lines about the session.
func (s *SessionLog) level() slog.Level {
	if s.used.Load() {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Ended logs that the session has ended, and why.
func (s *SessionLog) Ended(reason string) {
	s.decided.flush(s)
	s.Log.Log(context.Background(), s.level(), "session ended", "session", s.Name, "reason", reason)
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
	attrs   []any
	resumed bool
	since   time.Time
	used    atomic.Bool
}

// Attach records that a client has the session. name is the name that the client gives itself.
// Nothing is logged before Use or Detach.
func (s *SessionLog) Attach(name, principal, remote string, resumed bool) *ClientLog {
	return &ClientLog{
		session: s, resumed: resumed, since: time.Now(),
		attrs: []any{"session", s.Name, "client", name, "principal", principal, "remote", remote},
	}
}

// Use records a request for more than the status of the agent. The first such request logs the
// client as attached.
func (c *ClientLog) Use() {
	if c.used.Load() || c.used.Swap(true) {
		return
	}
	c.session.used.Store(true)
	c.session.Log.Info("session attached", append(c.attrs, "resumed", c.resumed)...)
}

// Detach logs that the client has lost the session. running is the number of processes that run in
// the session.
func (c *ClientLog) Detach(running int) {
	level := slog.LevelInfo
	if !c.used.Load() {
		level = slog.LevelDebug
	}
	c.session.Log.Log(context.Background(), level, "session detached", append(c.attrs, "seconds", seconds(c.since), "running", running)...)
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
	if !s.Log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	if program = filepath.Base(program); len(program) > maxProgram {
		program = program[:maxProgram] + "..."
	}
	p := &ProcessLog{session: s, what: what, since: time.Now(), attrs: []any{"session", s.Name, "program", program, "pid", pid}}
	s.Log.Debug(what+" started", append(p.attrs, more...)...)
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
	p.session.Log.Debug(p.what+" ended", append(append(p.attrs, how...), "seconds", seconds(p.since))...)
}

// seconds returns the time since an event in seconds, rounded to milliseconds.
func seconds(since time.Time) float64 { return time.Since(since).Round(time.Millisecond).Seconds() }
