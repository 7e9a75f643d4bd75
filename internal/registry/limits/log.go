package limits

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// Log is a log that nobody can fill: each principal may cause a bounded number of lines,
// and when the store fails not every request that needs it writes one. Its methods may
// run at once.
type Log struct {
	*slog.Logger
	limits  *Limiter
	trouble rate.Sometimes
}

// NewLog returns a Log that writes to log, within what limits lets each principal have.
func NewLog(log *slog.Logger, limits *Limiter) *Log {
	return &Log{Logger: log, limits: limits, trouble: rate.Sometimes{First: 100, Interval: time.Second}}
}

// Trouble warns that the store, or the connection to another server, fails: the first
// 100 times and then at most once a second, together for all messages. An error among
// attrs that says of itself that it is in the log already (Logged) is for the level debug.
func (g *Log) Trouble(message string, attrs ...any) {
	for _, attr := range attrs {
		err, _ := attr.(error)
		if known, ok := errors.AsType[interface {
			error
			Logged() bool
		}](err); ok && known.Logged() {
			g.Debug(message, attrs...)
			return
		}
	}
	g.trouble.Do(func() { g.Warn(message, attrs...) })
}

// Tell logs what a principal has caused, unless it has caused too many lines. The next
// line about it then says how many were left out.
func (g *Log) Tell(level slog.Level, message, environmentID, registrationID, principalID string, more ...any) {
	ctx := context.Background()
	if !g.Enabled(ctx, level) {
		return
	}
	unsaid, ok := g.limits.line(principalID)
	if !ok {
		return
	}
	attrs := append([]any{"environment", environmentID, "registration", registrationID, "principal", principalID}, more...)
	if unsaid > 0 {
		attrs = append(attrs, "lines_left_out", unsaid)
	}
	g.Log(ctx, level, message, attrs...)
}
