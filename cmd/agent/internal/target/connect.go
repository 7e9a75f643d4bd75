package target

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

const (
	// defaultWait is how long Connect repeats attempts after failures that can pass by themselves.
	defaultWait = 30 * time.Second
	// silence is how long Connect waits before it tells the user why there is no connection.
	silence = time.Second
	// firstPause is the first pause between attempts; the pause doubles up to longestPause.
	firstPause, longestPause = 100 * time.Millisecond, 2 * time.Second
	// attachedPatience is how long Connect waits for a session that another client has. That client
	// may have ended already, and the agent may notice this a little later.
	attachedPatience = 2 * time.Second
)

// Connect connects a client to the agent within the time of --wait. The agent must be outside this
// process, see [Flags.Elsewhere]. After a second without success, Connect prints the reason on
// standard error, and again when the reason changes. Its error is the last reason. adapt changes
// how the client connects.
func (f *Flags) Connect(ctx context.Context, sys program.System, adapt ...func(*client.Config)) (c *client.Client, err error) {
	err = f.reach(ctx, sys, func(ctx context.Context, cfg client.Config) (err error) {
		for _, change := range adapt {
			change(&cfg)
		}
		c, err = client.Connect(ctx, cfg)
		return err
	})
	return c, err
}

// Dial is Connect for a client in another program: it opens only the connection. The caller closes
// the connection, and then calls release.
func (f *Flags) Dial(ctx context.Context, sys program.System) (conn rpc.Conn, release func(), err error) {
	err = f.reach(ctx, sys, func(ctx context.Context, cfg client.Config) (err error) {
		release = cfg.Release
		if release == nil {
			release = func() {}
		}
		if conn, err = cfg.Dial(ctx); err != nil {
			release()
			return &client.ConnectError{Err: err, Final: cfg.Final != nil && cfg.Final(err)}
		}
		return nil
	})
	return conn, release, err
}

// reach makes attempts until one succeeds.
func (f *Flags) reach(ctx context.Context, sys program.System, attempt func(context.Context, client.Config) error) error {
	w := &waiting{flags: f, sys: sys, limit: defaultWait}
	if f.Wait != nil {
		w.limit = *f.Wait
	}
	patience := w.limit
	if patience == 0 {
		patience = client.DefaultConnectTimeout // of the only attempt
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errWaited)
	defer cancel()
	w.ctx = ctx
	overdue := time.AfterFunc(silence, w.overdue)
	defer overdue.Stop()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		cfg, err := f.config(ctx, sys, w.failed)
		if err != nil {
			w.end()
			return err
		}
		cfg.Dial = f.telling(sys, cfg.Dial)
		cfg.ConnectTimeout = min(patience, client.DefaultConnectTimeout)
		if f.Registry != "" {
			cfg.ConnectTimeout = patience // the dialer itself repeats attempts in that time
		}
		if err = attempt(ctx, cfg); err == nil {
			w.end()
			return nil
		}
		if w.failed(err) || sleep(ctx, pause) != nil {
			return w.error()
		}
	}
}

// telling returns a function that calls dial and logs each attempt, also after a loss, with the
// names and files that it uses.
func (f *Flags) telling(sys program.System, dial func(context.Context) (rpc.Conn, error)) func(context.Context) (rpc.Conn, error) {
	log := f.Logger(sys)
	how := []any{"agent", f.Name()}
	if f.Registry != "" {
		how = append(how, "registry", f.Registry)
	}
	if c := f.chosen; c != nil && c.context != nil {
		how = append(how, "context", c.context.Name)
	}
	for _, file := range [...]struct{ name, path string }{
		{"token_file", f.TokenFile}, {"registry_token_file", f.RegistryTokenFile}, {"tls_ca", f.TLSCA}, {"tls_cert", f.TLSCert},
	} {
		if file.path != "" {
			how = append(how, file.name, file.path)
		}
	}
	return func(ctx context.Context) (rpc.Conn, error) {
		begun := time.Now()
		log.Debug("connecting", how...)
		conn, err := dial(ctx)
		if err != nil {
			log.Debug("not connected", "error", err)
			return nil, err
		}
		log.Debug("connected", "connection", fmt.Sprint(conn), "seconds", time.Since(begun).Seconds())
		return conn, nil
	}
}

// Repeat calls attempt until it succeeds or the time of --wait is over; without --wait, once.
func (f *Flags) Repeat(ctx context.Context, attempt func() error) error {
	begun := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := attempt()
		if err == nil || f.Wait == nil || time.Since(begun)+pause > *f.Wait || sleep(ctx, pause) != nil {
			return err
		}
	}
}

// errWaited is the cause of the context that --wait ends.
var errWaited = errors.New("waited too long")

// waiting is one call of reach.
type waiting struct {
	flags *Flags
	sys   program.System
	limit time.Duration
	ctx   context.Context

	mu     sync.Mutex // guards the fields below
	last   error      // why the last attempt failed
	busy   time.Time  // when another client was first found to have the session
	loud   bool       // the user is told the reason
	told   string     // the reason that the user was told last
	passed bool       // the user is told nothing any more
}

// failed notes why an attempt failed, and reports whether it was the last.
func (w *waiting) failed(err error) (enough bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.passed {
		return false // it was connected before, and now reconnects
	}
	// The end of the time is not a reason, so the error before it stays.
	if w.ctx.Err() == nil || w.last == nil {
		w.last = err
	}
	if w.ctx.Err() != nil || w.limit == 0 || w.hopelessLocked(err) || w.flags.Wait == nil && final(err) {
		return true
	}
	w.tellLocked()
	return false
}

// overdue starts to tell the user why there is no connection.
func (w *waiting) overdue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loud = true
	w.tellLocked()
}

func (w *waiting) tellLocked() {
	if !w.loud || w.passed {
		return
	}
	text := "no answer yet"
	if w.last != nil {
		text = w.reason()
	}
	if text != w.told {
		w.told = text
		program.Complain(w.sys.Stderr, fmt.Sprintf("waiting for %s: %s", w.flags.Name(), text))
	}
}

// end stops telling the user.
func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed = true
}

// error says why there is no connection.
func (w *waiting) error() error {
	w.end()
	if cause := context.Cause(w.ctx); cause != nil && cause != errWaited {
		return cause // a signal, or --timeout
	}
	text := fmt.Sprintf("%s: %s", w.flags.Name(), w.reason())
	if w.ctx.Err() != nil && w.limit > 0 {
		text += fmt.Sprintf(" (waited %v, see --wait)", w.limit)
	}
	return &connectError{text, w.last}
}

// connectError is the last reason, with a text for the user.
type connectError struct {
	text string
	err  error
}

func (e *connectError) Error() string { return e.text }
func (e *connectError) Unwrap() error { return e.err }

// Name names the agent for people, without the parts of a URL that may be secret.
func (f *Flags) Name() string {
	if f.Registry != "" {
		return "environment " + *f.EnvironmentID
	}
	if strings.HasPrefix(f.URL, "unix:") {
		return f.URL
	}
	u, err := url.Parse(f.dialURL())
	if err != nil {
		return "the agent"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// reason says in short why the last attempt failed.
func (w *waiting) reason() string {
	if refused, ok := errors.AsType[*relay.RegistryError](w.last); ok && refused.Code == wire.CodeEnvironmentOffline {
		return "no executor is connected"
	}
	err := w.last
	if refused, ok := errors.AsType[*client.ServerError](err); ok && client.Retryable(err) {
		return refused.Err.Message
	}
	if connect, ok := errors.AsType[*client.ConnectError](err); ok {
		err = connect.Err
	}
	if errors.Is(err, errWaited) {
		return "no answer" // error adds how long
	}
	text := strings.TrimPrefix(err.Error(), "dialing "+w.flags.Name()+": ")
	status, answered := errors.AsType[*transport.StatusError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, unwanted := errors.AsType[*transport.HandshakeError](err)
	unknown, unverified := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case unverified && unknown.Cert != nil && w.flags.TLSCA == "" && w.flags.URL != "":
		text += " (see --tls-ca)"
	case unverified && unknown.Cert != nil && w.flags.Registry != "":
		text += " (" + registryRemedy + ")"
	case unwanted && w.flags.TLSCert == "":
		text += " (see --tls-cert)"
	case plain:
		text += " (for a server without TLS write ws://)"
	case answered && status.Status == http.StatusNotFound:
		text = "no agent, but something else answers there (a registry is named by --registry)"
	case answered && status.Status == http.StatusUnauthorized && w.flags.TokenFile == "" && w.flags.URL != "":
		text += w.ignored()
	}
	return text
}

// ignored says why no token was sent to an agent that requires a token.
func (w *waiting) ignored() string {
	if file, _ := w.sys.Lookup("AGENT_TOKEN_FILE"); file != "" {
		return " (AGENT_TOKEN_FILE was not used, because it is only for the agent of AGENT_URL; see --token-file)"
	}
	if token, _ := w.sys.Lookup("AGENT_TOKEN"); token != "" {
		return " (AGENT_TOKEN is never used; put the token into a file, see --token-file)"
	}
	return " (see --token-file)"
}

// hopelessLocked reports whether another attempt is useless: the server has answered, and it
// refuses the request or the credential, or does not speak the protocol. Repeated attempts with a
// wrong credential would look like an attack.
func (w *waiting) hopelessLocked(err error) bool {
	_, refused := errors.AsType[*client.ServerError](err)
	if refused && client.Retryable(err) { // the session has another client
		if w.busy.IsZero() {
			w.busy = time.Now()
		}
		return w.flags.Wait == nil && time.Since(w.busy) > attachedPatience
	}
	if status, ok := errors.AsType[*transport.StatusError](err); ok && unauthorized(status.Status) {
		return true
	}
	if answer, ok := errors.AsType[*relay.RegistryError](err); ok && unauthorized(answer.Status) {
		return true
	}
	_, foreign := errors.AsType[*client.ProtocolError](err)
	_, unsupported := errors.AsType[*client.UnsupportedError](err)
	return refused || foreign || unsupported
}

// unauthorized reports whether an HTTP status means that the credential was refused.
func unauthorized(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// final reports whether an error does not pass by itself, because somebody has to start a program, or
// to correct a name, a key or a certificate.
func final(err error) bool {
	if connect, ok := errors.AsType[*client.ConnectError](err); ok && connect.Final {
		return true
	}
	if status, ok := errors.AsType[*transport.StatusError](err); ok {
		return status.Status != http.StatusTooManyRequests && status.Status != http.StatusRequestTimeout && status.Status/100 != 5
	}
	if refused, ok := errors.AsType[*conns.RefusedError](err); ok {
		return refused.Code/100 == 4
	}
	_, name := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, unwanted := errors.AsType[*transport.HandshakeError](err)
	return name || certificate || plain || unwanted || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, fs.ErrPermission) // a sandbox or a firewall does not let this program connect
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
