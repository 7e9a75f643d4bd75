package transport

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxRefusals is how many refused clients of one kind are in the log in each refusalInterval.
	// The others are counted.
	maxRefusals     = 20
	refusalInterval = 10 * time.Second
	// maxReason is how many bytes of a reason are logged, because a client may have chosen it.
	maxReason = 200
)

// Refusal is the reason why a client may not connect.
type Refusal string

// The refusals.
const (
	RefusedOrigin Refusal = "origin" // the client is a browser
	RefusedUser   Refusal = "uid"    // another user, at a UNIX socket
	RefusedToken  Refusal = "token"  // none, or a wrong one
	RefusedTLS    Refusal = "tls"    // the handshake failed, usually because of the client's certificate
)

// Refusals returns all refusals.
func Refusals() []Refusal { return []Refusal{RefusedOrigin, RefusedUser, RefusedToken, RefusedTLS} }

// refusals logs refused clients, up to a limit, so that refused clients cannot fill the disk. Each
// kind of refusal has its own limit, so that a scan does not hide clients that try tokens.
type refusals struct {
	log *slog.Logger

	mu    sync.Mutex      // protects the fields below
	shown map[Refusal]int // in this interval
	more  map[Refusal]int // left out
	timer *time.Timer
}

// add notes a refused client. kind is "" for an invalid request, whoever sends it. A client that
// looks like a port scan is logged at the level debug.
func (r *refusals) add(kind Refusal, level slog.Level, remote, reason string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !r.log.Enabled(ctx, level) {
		return
	}
	r.mu.Lock()
	if r.timer == nil {
		r.timer = time.AfterFunc(refusalInterval, r.flush)
		r.shown, r.more = make(map[Refusal]int), make(map[Refusal]int)
	}
	r.shown[kind]++
	if r.shown[kind] > maxRefusals {
		r.more[kind]++
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

// flush ends an interval: it writes how many of each kind were left out.
func (r *refusals) flush() {
	r.mu.Lock()
	more := r.more
	r.shown, r.more = nil, nil
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	r.mu.Unlock()
	for _, kind := range append(Refusals(), "") {
		if n := more[kind]; n > 0 {
			r.log.Warn("more clients refused", "count", n, "interval", refusalInterval, "kind", cmp.Or(kind, "request"))
		}
	}
}
