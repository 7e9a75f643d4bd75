package httpclient

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// redirect returns the request that an answer redirects to, nil if the answer is a final one: another status, or no usable
// Location. It is an error if the target is not http or https.
func (h *hop) redirect(resp *http.Response) (*hop, error) {
	next := &hop{method: h.method, header: maps.Clone(h.header), host: h.host, body: h.body, secret: h.secret}
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound:
		if h.method == http.MethodPost {
			next.method = http.MethodGet
			next.dropBody()
		}
	case http.StatusSeeOther:
		if h.method != http.MethodHead {
			next.method = http.MethodGet
		}
		next.dropBody()
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	location := resp.Header.Get("Location")
	if location == "" || !isVisible(location) {
		return nil, nil
	}
	if scheme, _, ok := strings.Cut(location, ":"); ok && isScheme(scheme) &&
		!strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return nil, fmt.Errorf("redirect to scheme %s, want http or https", bounded(scheme))
	}
	target, err := resolveURL(h.url, location)
	if err != nil {
		return nil, nil // the client sees the redirect and may make sense of it
	}
	target.User = nil // a server must not choose the credentials of the next request
	next.url = target
	sameOrigin := target.Scheme == h.url.Scheme && target.Hostname() == h.url.Hostname() && port(target) == port(h.url)
	if !sameOrigin {
		next.dropCredentials()
	}
	next.setReferer(h.url, sameOrigin)
	return next, nil
}

func (h *hop) dropBody() {
	h.body = nil
	for name := range h.header {
		if strings.HasPrefix(name, "Content-") {
			delete(h.header, name)
		}
	}
}

// dropCredentials removes what was meant for one host only: the usual headers, and any that hold the content of a variable.
// The name of the host is one of those things.
func (h *hop) dropCredentials() {
	for _, name := range []string{"Authorization", "Cookie", "Cookie2", "Proxy-Authorization", "Www-Authenticate"} {
		h.header.Del(name)
	}
	for _, name := range h.secret {
		h.header.Del(name)
	}
	h.host = ""
}

// setReferer names the page that redirected: whole for its own origin, only the origin for another one, and nothing when
// the way leads from https to http (Referrer Policy, strict-origin-when-cross-origin).
func (h *hop) setReferer(from *url.URL, sameOrigin bool) {
	h.header.Del("Referer")
	switch {
	case from.Scheme == "https" && h.url.Scheme == "http":
	case sameOrigin:
		h.header.Set("Referer", from.String())
	default:
		h.header.Set("Referer", (&url.URL{Scheme: from.Scheme, Host: from.Host, Path: "/"}).String())
	}
}

// port returns the port of u or the usual one of its scheme.
func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}
