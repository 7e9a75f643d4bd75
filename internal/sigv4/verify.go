package sigv4

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Window is the largest difference, in either direction, between the time of a signed request and
// the time of the server that checks it. Until the window is over, a signature can be used again
// for the same request.
const Window = 15 * time.Minute

// Parts of an Authorization header.
const (
	scheme     = "AWS4-HMAC-SHA256 "
	terminator = "aws4_request"

	maxHeader   = 1 << 10 // bytes of the header
	maxToken    = 16 << 10
	maxPart     = 128 // bytes of an access key id, a region or a service
	dateFormat  = "20060102T150405Z"
	signatureSz = 64 // hexadecimal digits
)

// ErrNotSigned says that a signature does not prove its claim. It does not say why, because the
// reason would help an attacker who guesses.
var ErrNotSigned = errors.New("the request is not signed by its access key")

// IsClaim reports whether an Authorization header has the scheme of [ParseClaim].
func IsClaim(header string) bool { return strings.HasPrefix(header, scheme) }

// A Claim is the content of an Authorization header. It proves nothing until [Claim.Verify] has
// returned nil.
type Claim struct {
	AccessKeyID string
	Scope       Scope

	day       string // YYYYMMDD
	signed    []string
	signature string
}

// ParseClaim parses an Authorization header. It is strict and bounded. The signed headers may only
// be host, date, session token and content type, because only these prove anything here. Host and
// date are required.
func ParseClaim(header string) (*Claim, error) {
	malformed := errors.New("authorization is no AWS4-HMAC-SHA256 signature")
	rest, ok := strings.CutPrefix(header, scheme)
	if !ok || len(header) > maxHeader {
		return nil, malformed
	}
	credential, rest, ok1 := strings.Cut(rest, ", SignedHeaders=")
	names, signature, ok2 := strings.Cut(rest, ", Signature=")
	credential, ok3 := strings.CutPrefix(credential, "Credential=")
	parts := strings.Split(credential, "/")
	if !ok1 || !ok2 || !ok3 || len(parts) != 5 || parts[4] != terminator {
		return nil, malformed
	}
	for _, part := range []string{parts[0], parts[2], parts[3]} {
		if !isWord(part) {
			return nil, malformed
		}
	}
	if _, err := time.Parse("20060102", parts[1]); err != nil || !isHex(signature) {
		return nil, malformed
	}
	c := &Claim{
		AccessKeyID: parts[0], Scope: Scope{Region: parts[2], Service: parts[3]},
		day: parts[1], signed: strings.Split(names, ";"), signature: signature,
	}
	if !slices.IsSorted(c.signed) || len(slices.Compact(slices.Clone(c.signed))) != len(c.signed) ||
		!slices.Contains(c.signed, "host") || !slices.Contains(c.signed, "x-amz-date") {
		return nil, errors.New("authorization does not sign host and x-amz-date, in order")
	}
	for _, name := range c.signed {
		switch name {
		case "host", "x-amz-date", "x-amz-security-token", "content-type":
		default:
			return nil, errors.New("authorization signs other headers than host, x-amz-date, x-amz-security-token and content-type")
		}
	}
	return c, nil
}

// isWord reports whether text has only letters, digits, _ and -, and at most maxPart bytes. No part
// of a claim needs other characters.
func isWord(text string) bool {
	for _, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return 0 < len(text) && len(text) <= maxPart
}

func isHex(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || '9' < c) && (c < 'a' || 'f' < c) {
			return false
		}
	}
	return len(text) == signatureSz
}

// Verify signs the request again with the secret and compares the signatures. at has the hosts and
// paths under which clients may know this server; without any, Verify uses those of the request. If
// there is a body, its content type must be signed. If there is a session token, it must be signed.
func (c *Claim) Verify(ctx context.Context, r *http.Request, body []byte, secret string, now time.Time, at ...*url.URL) error {
	date, ok := one(r.Header, headerDate, len(dateFormat))
	when, err := time.Parse(dateFormat, date)
	if !ok || err != nil || when.Format(dateFormat) != date || date[:len(c.day)] != c.day || when.Sub(now).Abs() > Window {
		return ErrNotSigned
	}
	keys := Keys{AccessKeyID: c.AccessKeyID, SecretAccessKey: secret}
	keys.SessionToken, ok = one(r.Header, headerToken, maxToken)
	if !ok && len(r.Header.Values(headerToken)) > 0 || ok != slices.Contains(c.signed, "x-amz-security-token") {
		return ErrNotSigned
	}
	contentType, ok := one(r.Header, headerContentType, maxHeader)
	typed := slices.Contains(c.signed, "content-type")
	if typed && !ok || !typed && len(body) > 0 {
		return ErrNotSigned
	}
	if len(at) == 0 {
		at = []*url.URL{{Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}}
	}
	for _, u := range at {
		bare := &http.Request{Method: r.Method, URL: &url.URL{Host: u.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: r.URL.RawQuery}, Host: u.Host, Header: http.Header{}}
		if typed {
			bare.Header.Set(headerContentType, contentType)
		}
		if err := keys.sign(ctx, bare, body, c.Scope, when); err != nil {
			return err
		}
		_, want, _ := strings.Cut(bare.Header.Get(headerAuthorization), ", Signature=")
		if subtle.ConstantTimeCompare([]byte(want), []byte(c.signature)) == 1 {
			return nil
		}
	}
	return ErrNotSigned
}

// one returns the value of a header. It returns false unless the header is present exactly once,
// not empty and not too long.
func one(h http.Header, name string, limit int) (string, bool) {
	values := h.Values(name)
	if len(values) != 1 || values[0] == "" || len(values[0]) > limit {
		return "", false
	}
	return values[0], true
}
