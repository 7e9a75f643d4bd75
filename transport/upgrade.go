package transport

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/internal/unixsocket"
)

// serverWriteBuffer is how many bytes of a server's frame, including its header,
// go through a buffer; the rest of a larger message is sent without a copy.
const serverWriteBuffer = 4 << 10

var serverWriteBuffers sync.Pool

// serveHTTP answers a request as the table of rpc.md 1.2 says, in its order:
// Origin, route, upgrade, authentication.
func (l *Listener) serveHTTP(w http.ResponseWriter, r *http.Request) {
	// An answer ends its connection, because a second request would restart the
	// deadline of the HTTP part. The answer to an upgrade does not have this
	// header.
	w.Header().Set("Connection", "close")
	if _, ok := r.Header["Origin"]; ok {
		l.refuse(r, RefusedOrigin, slog.LevelWarn, http.StatusForbidden, "the request has an Origin, as those of web pages")
		w.WriteHeader(http.StatusForbidden)
		return
	}
	switch path := r.URL.EscapedPath(); {
	case path == "/":
		l.serveUpgrade(w, r)
	case path != "/readyz" && (path != "/metrics" || l.config.Metrics == nil):
		l.refuse(r, "", slog.LevelDebug, http.StatusNotFound, "nothing is served at that path")
		w.WriteHeader(http.StatusNotFound)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET,HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
	case path == "/metrics":
		l.serveMetrics(w, r)
	}
}

// refuse notes a refused client, see [refusals.add]. It logs nothing that the client sent.
func (l *Listener) refuse(r *http.Request, kind Refusal, level slog.Level, status int, reason string) {
	if kind != "" {
		l.config.Refused(kind)
	}
	l.refused.add(kind, level, r.Context().Value(wireKey{}).(*wire).client(), reason, slog.Int("status", status))
}

// serveMetrics shows the metrics to clients that may connect.
func (l *Listener) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if a := l.admit(r); a.refused != "" {
		l.refuse(r, a.refused, slog.LevelWarn, a.status, a.text)
		reply(w, a.status, a.text)
		return
	}
	l.config.Metrics.ServeHTTP(w, r)
}

func (l *Listener) serveUpgrade(w http.ResponseWriter, r *http.Request) {
	if status, text := checkUpgrade(r); status != 0 {
		l.refuse(r, "", slog.LevelWarn, status, text)
		reply(w, status, text)
		return
	}
	a := l.admit(r)
	if a.refused != "" {
		l.refuse(r, a.refused, slog.LevelWarn, a.status, a.text)
		reply(w, a.status, a.text)
		return
	}
	leave, err := enter(a.principal)
	if err != nil {
		l.refuse(r, "", slog.LevelWarn, http.StatusTooManyRequests, err.Error())
		reply(w, http.StatusTooManyRequests, err.Error())
		return
	}
	// When Upgrade takes the connection from the HTTP server, connState calls
	// running.Done for it. This second Add keeps Close waiting until the connection
	// is handed over.
	l.running.Add(1)
	defer l.running.Done()
	upgrader := websocket.Upgrader{
		HandshakeTimeout: handshakeTimeout,
		WriteBufferSize:  serverWriteBuffer,
		WriteBufferPool:  &serverWriteBuffers,
		CheckOrigin:      func(*http.Request) bool { return true }, // serveHTTP has refused any Origin
		Error: func(w http.ResponseWriter, _ *http.Request, status int, _ error) {
			// Only the form of the key can still be wrong.
			const text = "`Sec-WebSocket-Key` header is not the base64 of 16 bytes"
			l.refuse(r, "", slog.LevelWarn, status, text)
			reply(w, status, text)
		},
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		leave()
		return // the request was answered, or the client is gone
	}
	conn := newWebSocket(ws, wireOf(ws.NetConn()), l.config.PingInterval, l.config.PeerTimeout, l.config.Budget)
	conn.serves, conn.principal = true, a.principal
	conn.begin(leave, a.expires, func() {
		l.refused.add(RefusedToken, slog.LevelInfo, conn.Remote(), "the right to connect has expired, so this connection ends")
	})
	l.handOver(conn)
}

// enter counts one more connection of a principal, until leave is called.
func enter(principal string) (leave func(), err error) {
	if err := share.Connections.Take(principal, 1); err != nil {
		return nil, err
	}
	if err := share.Descriptors().Take(principal, 1); err != nil {
		share.Connections.Give(principal, 1)
		return nil, err
	}
	return func() {
		share.Descriptors().Give(principal, 1)
		share.Connections.Give(principal, 1)
	}, nil
}

// admission is the decision about a client that wants to connect.
type admission struct {
	principal string    // see [WebSocket.Principal]
	expires   time.Time // when its right to connect ends; zero: never

	refused Refusal // "": it may connect
	status  int     // of the answer that refuses it, with text
	text    string
}

// admit decides whether a client may connect.
func (l *Listener) admit(r *http.Request) (a admission) {
	from := r.Context().Value(wireKey{}).(*wire)
	if l.config.certified() {
		certificate := from.secure.ConnectionState().PeerCertificates[0]
		a.principal, a.expires = "cert:"+nameOf(certificate), certificate.NotAfter
	}
	if l.local {
		uid := from.uid
		if !unixsocket.May(uid, l.config.AllowUIDs...) {
			return admission{
				refused: RefusedUser, status: http.StatusForbidden,
				text: fmt.Sprintf("uid %d may not connect: the agent was not started with --allow-uid %d", uid, uid),
			}
		}
		a.principal = fmt.Sprintf("uid:%d", uid)
	}
	if l.config.Auth == nil {
		return a
	}
	subject, until, err := l.config.Auth.check(r.Header, time.Now())
	if err != nil {
		return admission{refused: RefusedToken, status: http.StatusUnauthorized, text: err.Error()}
	}
	if subject != "" {
		a.principal = "sub:" + subject
	}
	if a.expires.IsZero() || !until.IsZero() && until.Before(a.expires) {
		a.expires = until
	}
	return a
}

// wireKey is the key of the [wire] in the context of a request.
type wireKey struct{}

// checkUpgrade returns the status and text that refuse an upgrade, and status 0 for
// a request that may be upgraded.
func checkUpgrade(r *http.Request) (status int, text string) {
	switch {
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "Request method must be `GET`"
	case !hasToken(r.Header["Connection"], "upgrade"):
		return http.StatusBadRequest, "Connection header did not include 'upgrade'"
	case !hasToken(r.Header["Upgrade"], "websocket"):
		return http.StatusBadRequest, "`Upgrade` header did not include 'websocket'"
	case r.Header.Get("Sec-Websocket-Version") != "13":
		return http.StatusBadRequest, "`Sec-WebSocket-Version` header did not include '13'"
	case len(r.Header["Sec-Websocket-Key"]) == 0:
		return http.StatusBadRequest, "`Sec-WebSocket-Key` header missing"
	case !r.ProtoAtLeast(1, 1):
		return http.StatusUpgradeRequired, "HTTP/1.0 cannot be upgraded"
	}
	return 0, ""
}

// hasToken looks for token in comma-separated lists, in any case.
func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for word := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(word), token) {
				return true
			}
		}
	}
	return false
}

// reply answers with text alone; http.Error would append a line feed.
func reply(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	// A client that has left needs no answer.
	_, _ = w.Write([]byte(text))
}
