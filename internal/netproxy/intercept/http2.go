package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// Limits of one connection of the command.
const (
	maxHeader     = 64 << 10 // bytes of the header of a request, or of an answer
	maxStreams    = 100      // concurrent requests
	maxConns      = 16       // connections to a destination that speaks HTTP/1
	idleTime      = 5 * time.Minute
	handshakeTime = 30 * time.Second
	frame         = 64 << 10   // highest size of a received frame, in bytes
	window        = 1 << 20    // receive buffer in bytes: of one stream, and of all streams from the command together
	windows       = 2 << 20    // receive buffer in bytes, of all streams from the destination together
	chunk         = 16<<10 - 9 // size of a copy buffer in bytes: with the frame header, it fills one TLS record
)

// A Stream is a connection of the command that has negotiated HTTP/2.
type Stream struct {
	Conn *tls.Conn
	Host string // in the form that rules.Host returns
	Port uint16
	// Dial connects to the destination. It is called more than once if the destination speaks HTTP/1.
	Dial func(context.Context) (net.Conn, error)
	// Roots are the certificate authorities for the destination's certificate. Nil: the system's.
	Roots *x509.CertPool
	// Judge returns nil for a request that is allowed, and otherwise the handler that answers the request.
	// If Judge is nil, each request is allowed.
	Judge func(*http.Request) http.HandlerFunc
	// Restore returns the value of a field that is sent to the destination. Nil: no value is changed.
	Restore func(path, field, value string) string
}

// Serve answers the requests on a connection until the connection ends or ctx is done. When it
// returns, none of its goroutines runs.
func Serve(ctx context.Context, s Stream) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	destination := net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Dial(ctx) },
		TLSClientConfig:        &tls.Config{ServerName: s.Host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    handshakeTime,
		IdleConnTimeout:        idleTime,
		MaxConnsPerHost:        maxConns,
		DisableCompression:     true, // bodies are forwarded unchanged
		MaxResponseHeaderBytes: maxHeader,
		WriteBufferSize:        chunk,
		ReadBufferSize:         chunk,
		HTTP2:                  &http.HTTP2Config{MaxReadFrameSize: frame, MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: windows},
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Transport:  transport,
		BufferPool: &chunks,
		ErrorLog:   silent,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "https", destination
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = r.In.Host
			for _, name := range forwarded { // package httputil removes these fields
				if values, ok := r.In.Header[name]; ok {
					r.Out.Header[name] = slices.Clone(values)
				}
			}
			if s.Restore == nil || r.In.Method == http.MethodTrace { // the answer to TRACE contains the fields
				return
			}
			path := r.Out.URL.EscapedPath()
			for name, values := range r.Out.Header {
				for i, value := range values {
					values[i] = s.Restore(path, name, value)
				}
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the command has gone; an empty answer would look complete, so the stream is aborted
			}
			answer(w, http.StatusBadGateway, "upstream failure")
		},
	}
	requests := &requests{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !sameHost(r.Host, s.Host, s.Port):
			answer(w, http.StatusBadRequest, "host mismatch")
		case r.Method == http.MethodConnect:
			answer(w, http.StatusBadRequest, "no tunnels inside a tunnel")
		default:
			if s.Judge != nil {
				if refuse := s.Judge(r); refuse != nil {
					refuse(w, r)
					return
				}
			}
			proxy.ServeHTTP(w, r)
		}
	})}
	server := &http.Server{
		Handler:           requests,
		ReadHeaderTimeout: handshakeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          silent,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: frame, MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: window},
	}
	listener := &once{conn: s.Conn, closed: make(chan struct{})}
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			_ = listener.Close()
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve(listener)
	_ = server.Close()
	requests.wait()
}

// forwarded are fields about proxies. The command may set them to any value.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// silent discards the log, because package http may log paths.
var silent = log.New(io.Discard, "", 0)

// answer writes an answer of the proxy itself.
func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // an error means that the command has hung up
}

// sameHost reports whether the Host of a request names the host and port of its tunnel.
func sameHost(named, host string, port uint16) bool {
	name, p := named, "443"
	if i := strings.LastIndexByte(named, ':'); i >= 0 && !strings.HasSuffix(named, "]") {
		name, p = named[:i], named[i+1:]
	}
	name, err := rules.Host(name)
	return err == nil && name == host && p == strconv.Itoa(int(port))
}

// requests counts the requests under way. Once wait is called, no request may begin.
type requests struct {
	handler http.Handler
	running sync.WaitGroup

	mu   sync.Mutex
	over bool
}

func (r *requests) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if !r.begin() {
		return
	}
	defer r.running.Done()
	r.handler.ServeHTTP(w, q)
}

func (r *requests) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	r.running.Add(1)
	return true
}

func (r *requests) wait() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.running.Wait()
}

// once is a listener with one connection.
type once struct {
	conn   net.Conn
	given  bool
	close  sync.Once
	closed chan struct{}
}

func (o *once) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}

func (o *once) Close() error {
	o.close.Do(func() { close(o.closed) })
	return nil
}

func (o *once) Addr() net.Addr { return o.conn.LocalAddr() }

// chunks has the buffers through which bodies are copied.
var chunks pool

type pool struct{ free sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.free.Get().(*[chunk]byte); ok {
		return b[:]
	}
	return make([]byte, chunk)
}

func (p *pool) Put(b []byte) { p.free.Put((*[chunk]byte)(b)) }
