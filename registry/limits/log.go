package limits

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// Log is a log with room for everybody: what a principal causes is told within
// what it may, and that a store fails is not told by each who needs it then.
type Log struct {
	*slog.Logger
	limits  *Limiter
	trouble rate.Sometimes
}

// NewLog bounds what goes into log.
func NewLog(log *slog.Logger, limits *Limiter) *Log {
	return &Log{Logger: log, limits: limits, trouble: rate.Sometimes{First: 100, Interval: time.Second}}
}

// Trouble warns of a store, or a way to another server, that fails.
func (g *Log) Trouble(message string, attrs ...any) {
	g.trouble.Do(func() { g.Warn(message, attrs...) })
}

// Tell logs what a principal has caused, within what it may.
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
