package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/share"
)

// Bounds of one HTTP exchange. They do not apply to a websocket once it is open.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 20 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 5 * time.Minute // of principals: executors keep their connection for the next handshake
	maxHeaderBytes = 16 << 10
)

const (
	// maxStrangers is how many connections without a credential or a signed URL may
	// be open; each takes 20 KiB. A new connection replaces the oldest, which is
	// closed once it has had its strangerTurn.
	maxStrangers = 4096
	// strangerTurn is longer than an honest request takes when thousands of executors
	// come at once, as after a restart of the registry. When it was a quarter of a
	// second, with 1,024 places, 3,000 executors took three times as long over TLS:
	// connections whose handshake had to wait were closed, and came again.
	strangerTurn = time.Second
	// lastWords is how long the rest of a request is read after an answer that ends
	// its connection.
	lastWords = 500 * time.Millisecond
)

// Front is the HTTP server of a [Server]. It treats connections of strangers and of
// principals differently. Strangers have few places, and each answer to them ends their
// connection. After an allowed request of a principal, the connection stays open for the
// next request, and counts for that principal ([store.Limits]). A proxy may send
// requests of many principals over one connection, which counts for the last of them.
// All methods may run concurrently.
type Front struct {
	server   *Server
	listener net.Listener
	web      http.Server
	lobby    *conns.Lobby
	short    share.Shortage
	stop     sync.Once
	done     chan struct{} // closed when no more connections are accepted

	mu    sync.Mutex         // protects the field below
	seats map[net.Conn]*seat // by the HTTP server's connection
}

// NewFront makes the HTTP server of server for the connections that the listener accepts.
// The Front closes the listener. The listener must be plain: with a config, the Front
// itself adds TLS, so that a connection already counts as a stranger's during its
// handshake. A nil config means no TLS.
func NewFront(server *Server, listener net.Listener, config *tls.Config) *Front {
	return newFront(server, server, listener, config)
}

// NewMetricsFront makes an HTTP server for the metrics and the health paths of server, on a
// port of its own. All its connections count as strangers', as with other exporters.
func NewMetricsFront(server *Server, listener net.Listener) *Front {
	return newFront(server, http.HandlerFunc(server.serveOperator), listener, nil)
}

func newFront(server *Server, handler http.Handler, listener net.Listener, config *tls.Config) *Front {
	f := &Front{server: server, lobby: conns.NewLobby(maxStrangers, strangerTurn), done: make(chan struct{}), seats: make(map[net.Conn]*seat)}
	f.listener = door{Listener: listener, f: f}
	if config != nil {
		f.listener = tls.NewListener(f.listener, config)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true) // websockets need it
	f.web = http.Server{
		Handler:           handler,
		Protocols:         &protocols,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       f.admit,
		ConnState:         f.changed,
		ErrorLog:          slog.NewLogLogger(server.log.Handler(), slog.LevelDebug), // strangers' broken handshakes
	}
	return f
}

// Serve answers requests until Shutdown or Close, and then returns nil.
func (f *Front) Serve() error {
	err := f.web.Serve(f.listener)
	select {
	case <-f.done:
		return nil
	default:
		return err
	}
}

// Shutdown accepts no more connections, and waits until all requests are answered or ctx
// ends; then it returns the error of ctx. It does not end websockets: [Server.Drain] and
// [Server.Close] do.
func (f *Front) Shutdown(ctx context.Context) error {
	f.close()
	return closed(f.web.Shutdown(ctx))
}

// Close accepts no more connections and closes open ones, except websockets. It waits for
// nothing.
func (f *Front) Close() error {
	f.close()
	return closed(f.web.Close())
}

// closed returns err, unless it says that something was closed already.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (f *Front) close() {
	f.stop.Do(func() { close(f.done) })
	f.lobby.Close()
	// The HTTP server closes the listener, too, but only if Serve was called.
	_ = f.listener.Close()
}

// door is the listener of the HTTP server: each connection that it accepts has a seat in
// the lobby. It lies below TLS, because a peer is also a stranger during its handshake.
type door struct {
	net.Listener
	f *Front
}

// Accept returns the next connection that has a seat.
func (d door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		d.f.short.Note(d.f.server.log.Logger, "nobody can connect", err)
		return nil, err // the HTTP server tries again
	}
	if !d.f.lobby.Enter(conn, d.f.done) {
		_ = conn.Close() // nothing was sent on it, so nothing is lost
		return nil, net.ErrClosed
	}
	return conn, nil
}

// seat is the place of a connection of a Front: a stranger's in the lobby, or a
// principal's.
type seat struct {
	f   *Front
	raw net.Conn // the lobby's connection, below TLS

	mu        sync.Mutex // protects the fields below
	principal string     // id; "" for a stranger
	release   func()     // frees the principal's place for a connection
	over      bool       // the connection has ended, or is a websocket
}

type seatKey struct{}

// admit makes the seat of a connection, where its requests find it.
func (f *Front) admit(ctx context.Context, conn net.Conn) context.Context {
	s := &seat{f: f, raw: conn}
	if secured, ok := conn.(*tls.Conn); ok {
		s.raw = secured.NetConn()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seats[conn] = s
	return context.WithValue(ctx, seatKey{}, s)
}

// changed gives up the seat of a connection that has ended, or has become a websocket
// and counts as such.
func (f *Front) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	f.mu.Lock()
	s := f.seats[conn]
	delete(f.seats, conn)
	f.mu.Unlock()
	s.leave()
}

// seatOf finds the seat of a request. Without a Front it is nil, which all methods of
// seat allow.
func seatOf(r *http.Request) *seat {
	s, _ := r.Context().Value(seatKey{}).(*seat)
	return s
}

// attend notes that the head of a request has come. From now on the stranger waits for the
// server, so its connection is not closed to make room for a new one.
func (s *seat) attend() {
	if s != nil {
		s.f.lobby.Attend(s.raw)
	}
}

// dismiss bounds how long the rest of a request is read after an answer that ends the
// connection. Without dismiss the HTTP server would read it for all of readTimeout. If the
// connection were closed at once, a peer that is still sending would lose the answer.
func (s *seat) dismiss(w http.ResponseWriter) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over { // a websocket must get no deadline
		// This fails only if the connection has ended.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lastWords))
	}
}

// know notes that a request of p came on the connection. The connection, which counted in
// the lobby or for another principal, then counts for p. know returns false if p may not
// have another connection: then nothing changes, and the connection must end after the
// answer.
func (s *seat) know(p *store.Principal) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.principal == p.ID {
		return !s.over
	}
	release, ok := s.f.server.limits.Keep(p)
	if !ok {
		return false
	}
	if s.principal == "" {
		s.f.lobby.Leave(s.raw)
	} else {
		s.release()
	}
	s.principal, s.release = p.ID, release
	return true
}

// leave frees the place of the connection, which has ended or is a websocket.
func (s *seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.principal == "" {
		s.f.lobby.Leave(s.raw)
	} else {
		s.release()
	}
}
