package transport

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxRefusals is how many refused clients are in the log in each refusalInterval. The others
	// are counted.
	maxRefusals     = 20
	refusalInterval = 10 * time.Second
	// maxReason is how much of a reason is in the log, in bytes: a client may have chosen it.
	maxReason = 200
)

// Refusal is why a client may not connect.
type Refusal string

// The refusals.
const (
	RefusedOrigin Refusal = "origin" // it is a browser
	RefusedUser   Refusal = "uid"    // another user, at a UNIX socket
	RefusedToken  Refusal = "token"  // none, or a wrong one
	RefusedTLS    Refusal = "tls"    // the handshake failed, mostly for the client's certificate
)

// Refusals returns all of them.
func Refusals() []Refusal { return []Refusal{RefusedOrigin, RefusedUser, RefusedToken, RefusedTLS} }

// refusals writes refused clients into the log: as many as may be, so that nobody can fill the disk
// by being refused.
type refusals struct {
	log *slog.Logger

	mu    sync.Mutex // protects the fields below
	shown int        // in this interval
	more  int        // left out
	timer *time.Timer
}

// add notes a refused client. One that looks as if it had not wanted to be a client, like a port
// scan, is for the level debug.
func (r *refusals) add(level slog.Level, remote, reason string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !r.log.Enabled(ctx, level) {
		return
	}
	r.mu.Lock()
	if r.timer == nil {
		r.timer = time.AfterFunc(refusalInterval, r.flush)
	}
	r.shown++
	if r.shown > maxRefusals {
		r.more++
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	if len(reason) > maxReason {
		reason = reason[:maxReason] + "..."
	}
	attrs = append([]slog.Attr{slog.String("remote", remote), slog.String("reason", reason)}, attrs...)
	r.log.LogAttrs(ctx, level, "client refused", attrs...)
}

// flush ends an interval: it writes how many were left out.
func (r *refusals) flush() {
	r.mu.Lock()
	more := r.more
	r.shown, r.more = 0, 0
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	r.mu.Unlock()
	if more > 0 {
		r.log.Warn("more clients refused", "count", more, "interval", refusalInterval)
	}
}
