package httpclient

import (
	"bytes"
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A Request is one HTTP request. Do does not change it, and keeps no reference to it after the body
// of the answer is closed.
type Request struct {
	Method  string // any token; the case is kept
	URL     string // absolute, http or https
	Headers []Header
	Body    []byte // empty means no body
	// Timeout covers headers and body together. Nil means no timeout; zero fails immediately.
	Timeout         *time.Duration
	FollowRedirects bool
	// Room takes the memory of the decoder of a body. Nil: it need not be counted.
	Room Room
}

// Header is one header line.
type Header struct {
	Name  string
	Value string
	// ValueEnvVar, if set, names a variable of this process whose content is appended to Value. Such a
	// header does not follow a redirect to another origin, or to where Config.Bound does not let the
	// variable go. In headers of answers it is nil.
	ValueEnvVar *string
}

// hop is one request of a chain of redirects.
type hop struct {
	method string
	url    *url.URL // without credentials and fragment
	header http.Header
	host   string // the Host header; empty means the host of url
	body   []byte
	secret []secret // headers that hold the content of a variable
}

// secret is a header that holds the content of a variable.
type secret struct{ header, variable string }

// prepare checks the parameters of a request and reads the variables that it
// names.
func (c *Client) prepare(req *Request) (*hop, error) {
	if !isToken(req.Method) {
		return nil, paramErrorf("method %q is no http token", bounded(req.Method))
	}
	u, err := parseURL(req.URL)
	if err != nil {
		return nil, paramErrorf("url: %v", err) // without the text of the URL, which may hold a password
	}
	h := &hop{method: req.Method, url: u, header: make(http.Header, len(req.Headers)+2), body: req.Body}
	if u.User != nil {
		password, _ := u.User.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
		h.header.Set("Authorization", "Basic "+credentials)
		u.User = nil
	}
	explicit := http.Header{}
	for _, f := range req.Headers {
		if !isToken(f.Name) {
			return nil, paramErrorf("header name %q is no http token", bounded(f.Name))
		}
		value, err := c.headerValue(f)
		if err != nil {
			return nil, err
		}
		if strings.EqualFold(f.Name, "Host") && !isHostPort(strings.Trim(value, " \t")) {
			// net/http would send an empty Host.
			return nil, paramErrorf("value of header %q is no host or host:port", bounded(f.Name))
		}
		explicit.Add(f.Name, value)
		if f.ValueEnvVar != nil {
			h.secret = append(h.secret, secret{f.Name, *f.ValueEnvVar})
		}
	}
	h.host = strings.Trim(explicit.Get("Host"), " \t")
	// net/http does the framing: a caller's length that differs from that of the
	// body would let one request smuggle in another.
	for _, name := range []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer"} {
		explicit.Del(name)
	}
	maps.Copy(h.header, explicit)
	for name, value := range map[string]string{"Accept": "*/*", "Accept-Encoding": acceptEncoding} {
		if _, ok := h.header[name]; !ok {
			h.header.Set(name, value)
		}
	}
	for _, s := range h.secret {
		if !c.may(h, s.variable) {
			return nil, paramErrorf("header %q cannot use the environment variable %q here: the operator of this agent lets it go to other URLs only", bounded(s.header), bounded(s.variable))
		}
	}
	return h, nil
}

// may reports whether a variable may go out with a hop. Whoever gets it must be allowed to have it:
// the server, the site that the Host header names there, and a proxy, unless TLS goes through it.
func (c *Client) may(h *hop, variable string) bool {
	bound := c.shared.config.Bound
	if bound == nil {
		return true
	}
	if h.host != "" {
		site := *h.url
		site.Host = strings.ToLower(h.host)
		if !bound(variable, &site) {
			return false
		}
	}
	if proxy := c.shared.config.Proxy.forURL(h.url); proxy != nil && h.url.Scheme == "http" && !bound(variable, proxy) {
		return false
	}
	return bound(variable, h.url)
}

func (c *Client) headerValue(f Header) (string, error) {
	value := f.Value
	if f.ValueEnvVar != nil {
		name := *f.ValueEnvVar
		if c.shared.config.Denied != nil && c.shared.config.Denied(name) {
			return "", paramErrorf("header %q cannot use the environment variable %q", bounded(f.Name), bounded(name))
		}
		var content string
		if c.shared.config.Env != nil {
			content, _ = c.shared.config.Env(name)
		}
		if content == "" {
			return "", paramErrorf("header %q needs the environment variable %q, which is not set or empty", bounded(f.Name), bounded(name))
		}
		value += content
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "", paramErrorf("value of header %q holds a control character", bounded(f.Name))
		}
	}
	return value, nil
}

// request makes a request for net/http. The body is a bytes.Reader, which can be read again. So
// net/http can repeat the request on a new connection if a reused connection turns out to be dead.
func (h *hop) request(ctx context.Context) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, h.method, h.url.String(), bytes.NewReader(h.body))
	if err != nil {
		return nil, err
	}
	r.Header = make(http.Header, len(h.header))
	for name, values := range h.header {
		if !actedOn[name] {
			name = strings.ToLower(name) // the reference sends lower case, and some servers expect it
		}
		r.Header[name] = values
	}
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = []string{""} // keeps net/http from adding its own
	}
	r.Host = h.host
	return r, nil
}

// needsHTTP1 reports whether the request has headers about the connection. HTTP/2 does not allow
// such headers: net/http would leave out some of them and refuse the request for others. HTTP/1.1
// sends them unchanged.
func (h *hop) needsHTTP1() bool {
	for _, name := range []string{"Upgrade", "Keep-Alive", "Proxy-Connection"} {
		if len(h.header[name]) > 0 {
			return true
		}
	}
	only := func(name string, allowed ...string) bool {
		values := h.header[name]
		return len(values) == 0 || len(values) == 1 && slices.Contains(allowed, strings.ToLower(values[0]))
	}
	return !only("Connection", "close", "keep-alive") || !only("Te", "trailers")
}

// actedOn are the headers that net/http looks up in requests by these names. They say whether the
// connection can be used again, whether the request may be repeated, and what goes to a proxy.
var actedOn = map[string]bool{
	"Connection": true, "Expect": true, "Idempotency-Key": true, "X-Idempotency-Key": true, "Proxy-Authorization": true,
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c|0x20 >= 'a' && c|0x20 <= 'z':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// bounded shortens a text of the caller for an error that quotes it.
func bounded(s string) string {
	const limit = 512
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}
