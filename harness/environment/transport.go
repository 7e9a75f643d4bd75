package environment

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/client"
)

// Transport says how to connect to an executor: [URL], [Stdio] or [Noise]. It is a
// value that opens nothing; a [Connector] makes the connections.
type Transport interface {
	// check refuses values that cannot make a connection.
	check() error
	// eager reports whether the environment connects when it is registered, and again
	// after its client has failed. Otherwise it connects once, when it is needed.
	eager() bool
	// timeouts returns the limits for opening a connection and for the handshake; 0 means the
	// client's.
	timeouts() (connect, initialize time.Duration)
}

// Connector makes a client configuration from a transport, as client.URL, client.Program
// and remote.Registry do for one kind each. Each call is for one client. An error is
// final: no other attempt is made.
//
// If the result has no name or timeouts, this package sets them. It also sets Single for
// a program.
type Connector func(Transport) (client.Config, error)

// URL is an executor that listens at a ws or wss URL. Its client recovers lost connections.
type URL struct {
	URL string
	// BearerToken is sent to the server; "" means none. Header has further headers.
	// Both need wss or a loopback host.
	BearerToken string
	Header      http.Header
	// ConnectTimeout bounds the opening of a connection, InitializeTimeout the handshake
	// after it; 0 means 10 s.
	ConnectTimeout, InitializeTimeout time.Duration
}

// Stdio is an executor that is started and speaks over its standard input and
// output. It is started only once, when it is first needed.
type Stdio struct {
	Program string
	Args    []string
	Env     map[string]string // added to the environment of programs
	Dir     string            // "" for the directory of this process
	// InitializeTimeout bounds the handshake; 0 means 10 s.
	InitializeTimeout time.Duration
}

// Noise is an executor that registered at an environment registry. Connections go
// through a rendezvous, end to end encrypted.
type Noise struct {
	RegistryURL   string
	EnvironmentID string // at the registry
	AuthToken     string
	AccountID     string // "" for none
	// ConnectTimeout and InitializeTimeout are as those of [URL].
	ConnectTimeout, InitializeTimeout time.Duration
}

// Headers returns a copy of all headers for the request that opens a connection.
func (t URL) Headers() http.Header {
	h := t.Header.Clone()
	if t.BearerToken != "" {
		if h == nil {
			h = http.Header{}
		}
		h.Set("Authorization", "Bearer "+t.BearerToken)
	}
	return h
}

// String returns the URL without parts that may be secret.
func (t URL) String() string { return plainURL(t.URL) }

// String returns the name of the program. The arguments may hold secrets.
func (t Stdio) String() string { return t.Program }

// String names the environment and its registry.
func (t Noise) String() string {
	return fmt.Sprintf("%s at %s", t.EnvironmentID, plainURL(t.RegistryURL))
}

func (URL) eager() bool   { return true }
func (Stdio) eager() bool { return false }
func (Noise) eager() bool { return true }

func (t URL) timeouts() (connect, initialize time.Duration) {
	return t.ConnectTimeout, t.InitializeTimeout
}

func (t Stdio) timeouts() (connect, initialize time.Duration) { return 0, t.InitializeTimeout }

func (t Noise) timeouts() (connect, initialize time.Duration) {
	return t.ConnectTimeout, t.InitializeTimeout
}

// check does not check the URL itself unless there are headers: an invalid URL fails
// when it is dialled (client.md 1.2).
func (t URL) check() error {
	switch trimmed := strings.TrimSpace(t.URL); {
	case trimmed == "":
		return configErrorf("remote environment requires an exec-server url")
	case isNone(trimmed):
		return configErrorf("remote environment cannot use disabled exec-server url")
	}
	return t.checkHeaders()
}

func (t Stdio) check() error {
	if strings.TrimSpace(t.Program) == "" {
		return configErrorf("environment program cannot be empty")
	}
	return nil
}

func (t Noise) check() error {
	if t.RegistryURL == "" || t.EnvironmentID == "" || t.AuthToken == "" {
		return configErrorf("noise environment requires a registry url, an environment id and a token")
	}
	return nil
}

// websocketHeaders belong to the opening of a websocket; so do those that begin with
// Sec-Websocket-.
var websocketHeaders = []string{"Host", "Connection", "Upgrade", "Content-Length", "Transfer-Encoding"}

func (t URL) checkHeaders() error {
	headers := t.Headers()
	if len(headers) == 0 {
		return nil
	}
	address := strings.TrimSpace(t.URL)
	local := strings.HasPrefix(address, "unix://")
	u, err := url.Parse(address)
	if !local && (err != nil || u.Host == "") {
		// The cause could quote a secret.
		return configErrorf("invalid exec-server WebSocket URL: want ws://HOST, wss://HOST or unix:///PATH")
	}
	for name, values := range headers {
		shown, canonical := strings.ToLower(name), http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name):
			return configErrorf("invalid name of exec-server WebSocket header %q", shown)
		case slices.Contains(websocketHeaders, canonical), strings.HasPrefix(canonical, "Sec-Websocket-"):
			return configErrorf("exec-server WebSocket header `%s` belongs to the WebSocket", shown)
		case slices.ContainsFunc(values, hasControl):
			return configErrorf("invalid value for exec-server WebSocket header `%s`", shown)
		}
	}
	if !local && u.Scheme != "wss" && (u.Scheme != "ws" || !isLoopback(u.Hostname())) {
		return configErrorf("exec-server WebSocket headers require wss:// or a loopback destination")
	}
	return nil
}

// isToken reports whether s can be the name of a header.
func isToken(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !isAlphanumeric(r) && !strings.ContainsRune(others, r)
	})
}

// hasControl reports whether s has a character that no header value may have.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

func isAlphanumeric(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

// isLoopback reports whether a host of a URL is this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() && !ip.Is4In6()
}

// isNone reports whether a setting says that there is no environment.
func isNone(s string) bool { return strings.EqualFold(s, "none") }

// plainURL drops query, fragment and credentials of a URL.
func plainURL(raw string) string {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil {
		return "malformed URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
