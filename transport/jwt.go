package transport

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/strictbase64"
)

// maxJWT bounds a token in bytes; the HTTP server takes no larger header.
const maxJWT = maxHeader

// jwtVerifier checks one kind of JWT: compact, HS256 (RFC 7515, RFC 7519). It is
// stricter than the RFCs demand, because its tokens are made for it: no member
// twice, no crit, numbers are integers.
type jwtVerifier struct {
	secret           []byte
	issuer, audience string // "" is not checked
	skew             int64  // seconds, not negative
}

// check verifies a token and its claims at the time now, in Unix seconds. It returns
// the subject, "" where the token names none.
func (v *jwtVerifier) check(token string, now int64) (subject string, err error) {
	claims, err := v.verify(token)
	if err != nil {
		return "", errJWT
	}
	exp, okExp := integer(claims["exp"])
	if !okExp {
		return "", errJWT
	}
	nbf, okNbf := int64(math.MinInt64), true
	if present(claims["nbf"]) {
		nbf, okNbf = integer(claims["nbf"])
	}
	issuer, okIss := text(claims["iss"])
	audience, okAud := texts(claims["aud"])
	subject, okSub := text(claims["sub"])
	if !okNbf || !okIss || !okAud || !okSub {
		return "", errJWT
	}
	switch {
	case exp < saturate(now, -v.skew): // not exp+skew, which may overflow
		return "", errJWTExpired
	case nbf > saturate(now, v.skew):
		return "", errJWTNotYetValid
	case v.issuer != "" && issuer != v.issuer:
		return "", errJWTIssuer
	case v.audience != "" && !slices.Contains(audience, v.audience):
		return "", errJWTAudience
	}
	return subject, nil
}

// verify returns the claims of a token with a good signature. check replaces its
// errors by errJWT, so that a client does not learn what was wrong.
func (v *jwtVerifier) verify(token string) (map[string]json.RawMessage, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxJWT || len(parts) != 3 {
		return nil, errors.New("not a compact token")
	}
	header, err := strictbase64.RawURL.Decode(parts[0])
	if err != nil {
		return nil, err
	}
	signature, err := strictbase64.RawURL.Decode(parts[2])
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, v.secret)
	mac.Write([]byte(token[:len(parts[0])+1+len(parts[1])]))
	if !hmac.Equal(signature, mac.Sum(nil)) {
		return nil, errors.New("bad signature")
	}
	members, err := object(header)
	if err != nil {
		return nil, err
	}
	if alg, ok := text(members["alg"]); !ok || alg != "HS256" {
		return nil, errors.New("alg is not HS256")
	}
	if _, critical := members["crit"]; critical {
		return nil, errors.New("crit names extensions we lack") // RFC 7515, 4.1.11
	}
	payload, err := strictbase64.RawURL.Decode(parts[1])
	if err != nil {
		return nil, err
	}
	return object(payload)
}

// object decodes a JSON object with nothing behind it and no member twice.
func object(data []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	members := make(map[string]json.RawMessage)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, ok := name.(string)
		if _, twice := members[key]; !ok || twice {
			return nil, errors.New("member given twice")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		members[key] = value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("data after the object")
	}
	return members, nil
}

// present tells whether a claim is there and not null.
func present(value json.RawMessage) bool {
	return value != nil && string(value) != "null"
}

// integer accepts the digits of an int64, no fraction and no exponent.
func integer(value json.RawMessage) (int64, bool) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	return n, err == nil
}

// text returns "" for a claim that is absent or null.
func text(value json.RawMessage) (s string, ok bool) {
	if !present(value) {
		return "", true
	}
	return s, value[0] == '"' && json.Unmarshal(value, &s) == nil
}

// texts reads a claim that is one string or an array of them. An absent claim has
// none.
func texts(value json.RawMessage) ([]string, bool) {
	if !present(value) {
		return nil, true
	}
	if s, ok := text(value); ok {
		return []string{s}, true
	}
	var elements []json.RawMessage
	if json.Unmarshal(value, &elements) != nil {
		return nil, false
	}
	list := make([]string, 0, len(elements))
	for _, element := range elements {
		s, ok := text(element)
		if !ok || !present(element) {
			return nil, false
		}
		list = append(list, s)
	}
	return list, true
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
