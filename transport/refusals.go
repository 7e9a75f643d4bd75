package transport

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/execagent/execagent/internal/loglines"
)

// maxReason is how many bytes of a reason are logged, because a client may have chosen it.
const maxReason = 200

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
	log   *slog.Logger
	lines loglines.Limit
}

func (r *refusals) begin(log *slog.Logger) {
	r.log = log
	r.lines.More = func(kind string, left int) {
		log.Warn("more clients refused", "count", left, "interval", loglines.Interval, "kind", cmp.Or(kind, "request"))
	}
}

// add notes a refused client. kind is "" for an invalid request, whoever sends it. A client that
// looks like a port scan is logged at the level debug.
func (r *refusals) add(kind Refusal, level slog.Level, remote, reason string, attrs ...slog.Attr) {
	ctx := context.Background()
	if !r.log.Enabled(ctx, level) || !r.lines.Allow(string(kind)) {
		return
	}
	attrs = append([]slog.Attr{slog.String("remote", remote), slog.String("reason", loglines.Clip(reason, maxReason))}, attrs...)
	r.log.LogAttrs(ctx, level, "client refused", attrs...)
}
