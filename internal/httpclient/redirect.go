package httpclient

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// redirect returns the request to which an answer redirects. It returns nil for a final answer,
// which has another status or no usable Location. A target that is neither http nor https is an
// error.
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
		return nil, nil // the caller gets the redirect as the answer
	}
	target.User = nil // a server must not choose the credentials of the next request
	next.url = target
	sameOrigin := target.Scheme == h.url.Scheme && target.Hostname() == h.url.Hostname() && port(target) == port(h.url)
	if !sameOrigin {
		next.dropCredentials(upgraded(h.url, target))
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

// upgraded reports whether a redirect leads from http to https on the same host, both at their
// usual ports. A site that has moved to https answers like this.
func upgraded(from, to *url.URL) bool {
	return from.Scheme == "http" && to.Scheme == "https" && from.Hostname() == to.Hostname() && port(from) == "80" && port(to) == "443"
}

// dropCredentials removes headers that were meant for one origin only: the usual headers with
// credentials, all headers that hold the content of a variable, and the Host header. Unless the
// host is the same, it also removes headers whose names sound like secrets.
func (h *hop) dropCredentials(sameHost bool) {
	for _, name := range []string{"Authorization", "Cookie", "Cookie2", "Proxy-Authorization", "Www-Authenticate"} {
		h.header.Del(name)
	}
	for _, s := range h.secret {
		h.drop(s.header)
	}
	h.secret = nil
	if !sameHost {
		maps.DeleteFunc(h.header, func(name string, _ []string) bool { return isSecret(name) })
	}
	h.host = ""
}

// drop removes one header.
func (h *hop) drop(header string) {
	h.header.Del(header)
	if strings.EqualFold(header, "Host") {
		h.host = ""
	}
}

// isSecret reports whether a header's name sounds like a secret, such as X-Api-Key, Private-Token
// and X-Amz-Security-Token.
func isSecret(name string) bool {
	name = strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
	for _, end := range []string{
		"apikey", "accesskey", "authkey", "secretkey", "subscriptionkey", "token", "secret", "password", "auth", "authorization", "credential", "credentials",
	} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// setReferer sets the Referer header to the redirecting URL, but only within one origin. Another
// origin must not learn the URL. curl does the same.
func (h *hop) setReferer(from *url.URL, sameOrigin bool) {
	h.header.Del("Referer")
	if sameOrigin {
		h.header.Set("Referer", from.String())
	}
}

// port returns the port of u, or the default port of its scheme.
func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}
