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

// Bounds of one HTTP exchange. They end with the upgrade to a websocket.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 20 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 5 * time.Minute // of principals: executors keep their connection for the next handshake
	maxHeaderBytes = 16 << 10
)

const (
	// maxStrangers is how many connections there are of those who have not shown
	// a credential yet, or a signed URL, at 20 KiB each. One more takes the place of
	// the oldest, once that has had its turn.
	maxStrangers = 4096
	// strangerTurn is longer than honest requests take to come in when thousands
	// come at once, as the executors of a registry that was restarted do. With 1,024
	// places and a quarter of a second, 3,000 of them took three times as long over
	// TLS: those whose handshake had to wait were closed, and came again.
	strangerTurn = time.Second
	// lastWords is how long the rest of a request may take whose answer ends the
	// connection.
	lastWords = 500 * time.Millisecond
)

// Front is the HTTP server of a [Server]. It knows strangers from principals:
// those are few, and each answer to them ends their connection. The connection of
// a request that was allowed stays open for the next one, and counts among the
// connections that its principal may have ([principal.Limits]), whoever comes through it
// next: that of a proxy in front is used by many.
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

// NewFront serves what the listener accepts, which must not be TLS yet: it is
// where config is given. The listener belongs to the Front from now on.
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

// Serve answers requests until Shutdown or Close, and returns nil then.
func (f *Front) Serve() error {
	err := f.web.Serve(f.listener)
	select {
	case <-f.done:
		return nil
	default:
		return err
	}
}

// Shutdown ends the front: no connection is accepted any more, and requests that
// are being answered have as long as ctx. Websockets are up to the [Server].
func (f *Front) Shutdown(ctx context.Context) error {
	f.close()
	return closed(f.web.Shutdown(ctx))
}

// Close is Shutdown without mercy.
func (f *Front) Close() error {
	f.close()
	return closed(f.web.Close())
}

// closed is the error of closing what may be closed already.
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

// door is what the HTTP server accepts from: connections that have a seat in the
// lobby. It is below TLS, whose handshake is a matter of strangers.
type door struct {
	net.Listener
	f *Front
}

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

// seat is a connection of a Front: in the lobby, or that of a principal.
type seat struct {
	f   *Front
	raw net.Conn // as the lobby has it

	mu        sync.Mutex // protects the fields below
	principal string     // "" in the lobby
	release   func()     // gives the principal's place for a connection back
	over      bool
}

type seatKey struct{}

// admit makes the seat of a connection, and lets requests find it.
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

// changed gives up the seat of a connection that has ended or is a websocket now,
// which is counted as such.
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

// seatOf returns nil for a request that has not come through a Front; its methods
// are made for that.
func seatOf(r *http.Request) *seat {
	s, _ := r.Context().Value(seatKey{}).(*seat)
	return s
}

// attend is for a request that has come in: what follows is up to the server, and
// no reason to close the connection for another one.
func (s *seat) attend() {
	if s != nil {
		s.f.lobby.Attend(s.raw)
	}
}

// dismiss is for a request that was answered and ends its connection. The HTTP
// server would wait for the rest of a body that nobody has read, for all of
// readTimeout; at once, what is on its way would make the peer lose the answer.
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

// know tells whether the connection may stay open after a request of the
// principal. Then it has left the lobby.
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

// leave gives back what the connection has.
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
