package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// maxJWT bounds a token in bytes; the HTTP server takes no larger header.
const maxJWT = maxHeader

// jwtVerifier checks one kind of JWT: compact, HS256 (RFC 7515, RFC 7519). It is
// stricter than the RFCs, because its tokens are made for it: JSON by the rules of
// [strictjson.Members], no crit, only integers as numbers.
type jwtVerifier struct {
	secret           []byte
	issuer, audience string // "" is not checked
	skew             int64  // seconds, not negative
}

// never is the time, in seconds from now, from which on an end counts as none. The time package
// cannot count as far as a token may say.
const never = 100 * 365 * 24 * 3600

// check verifies a token and its claims at the time now, in Unix seconds. It returns
// the subject, "" if the token names none, and the first moment at which the token is no
// longer accepted.
func (v *jwtVerifier) check(token string, now int64) (subject string, expires time.Time, err error) {
	claims, err := v.verify(token)
	if err != nil {
		return "", expires, errJWT
	}
	exp, errExp := claims.Int64("exp")
	nbf, errNbf := claims.Int64("nbf")
	if !claims.Has("nbf") {
		nbf = math.MinInt64
	}
	issuer, errIss := claims.Text("iss")
	audience, errAud := claims.Texts("aud")
	subject, errSub := claims.Text("sub")
	if !claims.Has("exp") || errors.Join(errExp, errNbf, errIss, errAud, errSub) != nil {
		return "", expires, errJWT
	}
	switch {
	case exp < saturate(now, -v.skew): // not exp+skew, which may overflow
		return "", expires, errJWTExpired
	case nbf > saturate(now, v.skew):
		return "", expires, errJWTNotYetValid
	case v.issuer != "" && issuer != v.issuer:
		return "", expires, errJWTIssuer
	case v.audience != "" && !slices.Contains(audience, v.audience):
		return "", expires, errJWTAudience
	}
	if end := saturate(saturate(exp, v.skew), 1); end < saturate(now, never) {
		expires = time.Unix(end, 0)
	}
	return subject, expires, nil
}

// verify returns the claims of a token with a valid signature. check replaces
// its errors by errJWT, so that a client does not learn what was wrong.
func (v *jwtVerifier) verify(token string) (strictjson.Map, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxJWT || len(parts) != 3 {
		return nil, errors.New("not a compact token")
	}
	header, err := strictjson.RawURLBase64.Decode(parts[0])
	if err != nil {
		return nil, err
	}
	signature, err := strictjson.RawURLBase64.Decode(parts[2])
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, v.secret)
	mac.Write([]byte(token[:len(parts[0])+1+len(parts[1])]))
	if !hmac.Equal(signature, mac.Sum(nil)) {
		return nil, errors.New("bad signature")
	}
	members, err := strictjson.ParseMap(header)
	if err != nil {
		return nil, err
	}
	if alg, err := members.Text("alg"); err != nil || alg != "HS256" {
		return nil, errors.New("alg is not HS256")
	}
	if _, critical := members["crit"]; critical {
		return nil, errors.New("crit names extensions we lack") // RFC 7515, 4.1.11
	}
	payload, err := strictjson.RawURLBase64.Decode(parts[1])
	if err != nil {
		return nil, err
	}
	return strictjson.ParseMap(payload)
}

// saturate returns a+b, or the nearest int64 if that overflows.
func saturate(a, b int64) int64 {
	sum := a + b
	switch {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return math.MinInt64
	}
	return sum
}
