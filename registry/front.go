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

	"github.com/execagent/execagent/internal/lobby"
	"github.com/execagent/execagent/registry/principal"
)

// Bounds of one HTTP exchange. An upgrade to a websocket ends them.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 20 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 5 * time.Minute // of principals: executors keep their connection for the next handshake
	maxHeaderBytes = 16 << 10
)

const (
	// maxStrangers is how many connections may be open that have shown neither a
	// credential nor a signed URL yet, at 20 KiB each. One more takes the place of
	// the oldest, once that one has had its turn.
	maxStrangers = 4096
	// strangerTurn is longer than an honest request takes among thousands, as the
	// executors of a restarted registry are. With 1,024 places and a quarter of a
	// second, 3,000 executors took three times as long over TLS: connections whose
	// handshake had to wait were closed, and came again.
	strangerTurn = time.Second
	// lastWords is how long the rest of a request is read after an answer that ends
	// the connection.
	lastWords = 500 * time.Millisecond
)

// Front is the HTTP server of a [Server]. It tells strangers from principals:
// strangers have few places, and each answer to them ends their connection. After a
// request that was allowed the connection stays open for the next one. It counts among
// those of the principal that came last ([principal.Limits]), since many come through
// the connections of a proxy in front.
type Front struct {
	server   *Server
	listener net.Listener
	web      http.Server
	lobby    *lobby.Lobby
	stop     sync.Once
	done     chan struct{} // closed when nothing is accepted any more

	mu    sync.Mutex         // protects the field below
	seats map[net.Conn]*seat // by the connection as the HTTP server has it
}

// NewFront serves what the listener accepts. The listener must not be TLS yet, since
// handshakes count as strangers': TLS is made by config, nil for none. The listener
// belongs to the Front from now on.
func NewFront(server *Server, listener net.Listener, config *tls.Config) *Front {
	f := &Front{server: server, lobby: lobby.New(maxStrangers, strangerTurn), done: make(chan struct{}), seats: make(map[net.Conn]*seat)}
	f.listener = door{Listener: listener, f: f}
	if config != nil {
		f.listener = tls.NewListener(f.listener, config)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true) // websockets need it
	f.web = http.Server{
		Handler:           server,
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

// Shutdown accepts no more connections, and waits for requests that are being answered
// as long as ctx lives. Websockets are the affair of the [Server].
func (f *Front) Shutdown(ctx context.Context) error {
	f.close()
	return closed(f.web.Shutdown(ctx))
}

// Close is Shutdown without waiting.
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
	_ = f.listener.Close() // the HTTP server may have done it, or never have heard of it
}

// door is the listener of the HTTP server: its connections have a seat in the lobby.
// It lies below TLS, since whoever does a handshake is a stranger still.
type door struct {
	net.Listener
	f *Front
}

// Accept returns the next connection that has a seat.
func (d door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !d.f.lobby.Enter(conn, d.f.done) {
		_ = conn.Close() // nobody has used it
		return nil, net.ErrClosed
	}
	return conn, nil
}

// seat is a connection of a Front: a stranger's, in the lobby, or a principal's.
type seat struct {
	f   *Front
	raw net.Conn // as the lobby has it

	mu        sync.Mutex // protects the fields below
	principal string     // "" in the lobby
	release   func()     // gives the principal's place for a connection back
	over      bool
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

// attend notes that a request has come in. From now on the server is what takes time,
// so the connection has not to go for another one.
func (s *seat) attend() {
	if s != nil {
		s.f.lobby.Attend(s.raw)
	}
}

// dismiss bounds how long the rest of a request is read after an answer that ends the
// connection. The HTTP server alone would read for all of readTimeout. Closing at once
// would make the peer lose the answer, while it is still sending.
func (s *seat) dismiss(w http.ResponseWriter) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over { // else it is a websocket
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lastWords)) // it may have ended
	}
}

// know gives the connection to the principal of its request, out of the lobby, and
// tells whether it may stay open.
func (s *seat) know(p *principal.Principal) bool {
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

// leave gives back the place of the connection.
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
