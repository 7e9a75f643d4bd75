package limits

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// Log is a log that no principal can fill: each principal may cause a bounded number of lines.
// If the store fails, not every request that needs the store writes a line. The methods may be
// called concurrently.
type Log struct {
	*slog.Logger
	limits  *Limiter
	trouble rate.Sometimes
}

// NewLog returns a Log that writes to log, within the lines that limits grants each principal.
func NewLog(log *slog.Logger, limits *Limiter) *Log {
	return &Log{Logger: log, limits: limits, trouble: rate.Sometimes{First: 100, Interval: time.Second}}
}

// Trouble logs a warning that the store, or the connection to another server, fails. It logs
// the first 100 warnings, and then at most one per second, together for all messages. If an
// error among attrs reports that the log has it already (Logged), the level is debug.
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

// Tell logs an event that a principal has caused, unless the principal has caused too many
// lines. The next line about this principal then has the number of lines that were left out.
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
