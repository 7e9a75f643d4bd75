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

// Window is how far the time of a signed request may be from that of who checks it, in either
// direction. A signature can be used again for the same request until it is over.
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

// ErrNotSigned says that a signature does not prove what it claims. It does not say why: that
// would help who guesses.
var ErrNotSigned = errors.New("the request is not signed by its access key")

// IsClaim reports whether an Authorization header is one that [ParseClaim] is for.
func IsClaim(header string) bool { return strings.HasPrefix(header, scheme) }

// Claim is what an Authorization header says. It proves nothing until [Claim.Verify] has
// returned nil.
type Claim struct {
	AccessKeyID string
	Scope       Scope

	day       string // YYYYMMDD
	signed    []string
	signature string
}

// ParseClaim reads an Authorization header. It is strict and bounded. The headers that are
// signed have to be host, date, session token and content type, at most: those alone prove
// anything here.
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

// isWord accepts letters, digits, _ and -, which no part of a claim needs more of.
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

// Verify signs the request anew with the secret and compares. at are the hosts and paths by
// which clients may know this server; without any it is what the request itself says. A body
// has to have its content type signed, and a session token has to be signed if it is there.
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

// one returns the value of a header that is there exactly once and not too long.
func one(h http.Header, name string, limit int) (string, bool) {
	values := h.Values(name)
	if len(values) != 1 || values[0] == "" || len(values[0]) > limit {
		return "", false
	}
	return values[0], true
}
