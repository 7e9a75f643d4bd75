// Package audit logs who uses an agent and for what: which client has which session, from where,
// and which programs run in it. It logs nothing that could be secret. A session is named by the
// beginning of its id, which opens nothing. A command is named by its program, without arguments
// and variables: by the program's name, or by its path where rules decided about the path.
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
// A client counts as attached with its first request for more than the agent's status. Clients that
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

// maxProgram is how much of a program's name is logged, in bytes.
const maxProgram = 64

// SessionLog is a session in the log.
type SessionLog struct {
	Log  *slog.Logger
	Name string // that opens nothing

	used    atomic.Bool // by a client that has wanted more than the status
	decided decided
}

// level is that of lines about the session.
func (s *SessionLog) level() slog.Level {
	if s.used.Load() {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Ended says that the session has ended, and why.
func (s *SessionLog) Ended(reason string) {
	s.decided.flush(s)
	s.Log.Log(context.Background(), s.level(), "session ended", "session", s.Name, "reason", reason)
}

// Label names a session. The whole id does not belong into a log: whoever has it can resume the
// session.
func Label(id string) string { return id[:8] }

// Place is where the other end of a connection is, see [rpc.Located]; else what the connection is
// called, as a stream of the relay.
func Place(conn rpc.Conn) string {
	switch known := conn.(type) {
	case rpc.Located:
		return known.Remote()
	case fmt.Stringer:
		return known.String()
	}
	return ""
}

// ClientLog is a client that has a session.
type ClientLog struct {
	session *SessionLog
	attrs   []any
	resumed bool
	since   time.Time
	used    atomic.Bool
}

// Attach notes that a client has got the session. name is how it calls itself.
func (s *SessionLog) Attach(name, principal, remote string, resumed bool) *ClientLog {
	return &ClientLog{
		session: s, resumed: resumed, since: time.Now(),
		attrs: []any{"session", s.Name, "client", name, "principal", principal, "remote", remote},
	}
}

// Use notes a request for more than the status of the agent. The first one makes the client one of
// the log.
func (c *ClientLog) Use() {
	if c.used.Load() || c.used.Swap(true) {
		return
	}
	c.session.used.Store(true)
	c.session.Log.Info("session attached", append(c.attrs, "resumed", c.resumed)...)
}

// Detach notes that the client has lost the session, in which so many processes run.
func (c *ClientLog) Detach(running int) {
	level := slog.LevelInfo
	if !c.used.Load() {
		level = slog.LevelDebug
	}
	c.session.Log.Log(context.Background(), level, "session detached", append(c.attrs, "seconds", seconds(c.since), "running", running)...)
}

// ProcessLog is a process in the log. A nil *Process is in none.
type ProcessLog struct {
	session *SessionLog
	what    string
	attrs   []any
	since   time.Time
	ended   atomic.Bool
}

// Started notes that a program runs, with those layers of a sandbox.
func (s *SessionLog) Started(program string, pid int, tty bool, layers []string) *ProcessLog {
	return s.started("process", program, pid, "tty", tty, "sandbox", layers)
}

// Capturing notes that a shell runs startup files, for a snapshot.
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

// Exited notes the exit code, which is 128+n after signal n.
func (p *ProcessLog) Exited(code int) { p.end("exit_code", code) }

// Killed notes that the agent has killed the process, with its session.
func (p *ProcessLog) Killed() { p.end("killed", true) }

// Captured notes that the startup files run no more. Whether there is a snapshot is for who has
// wanted it to say.
func (p *ProcessLog) Captured() { p.end() }

func (p *ProcessLog) end(how ...any) {
	if p == nil || p.ended.Swap(true) {
		return
	}
	p.session.Log.Debug(p.what+" ended", append(append(p.attrs, how...), "seconds", seconds(p.since))...)
}

// seconds is how long ago something was, in milliseconds' steps.
func seconds(since time.Time) float64 { return time.Since(since).Round(time.Millisecond).Seconds() }
