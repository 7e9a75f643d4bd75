package ticket

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// second is the second result of a call.
func second[A, B any](_ A, b B) B { return b }

// testKey makes a key whose halves have the right lengths.
func testKey() *wire.PublicKey {
	return &wire.PublicKey{
		Suite:    wire.KeySuite,
		X25519:   bytes.Repeat([]byte{1}, wire.X25519KeySize),
		MLKEM768: bytes.Repeat([]byte{2}, wire.MLKEM768KeySize),
	}
}

// testTicket is a harness's, good for a minute.
func testTicket(t testing.TB, g *Signer) (Ticket, url.Values) {
	t.Helper()
	want := Ticket{Role: Harness, EnvironmentID: "env-1", RegistrationID: "reg_1", Principal: "key:0123456789abcdef", Expires: time.Unix(1_800_000_000, 0)}
	u := rig.Value(url.Parse(g.URL(&url.URL{Scheme: "wss", Host: "h:1", Path: "/base"}, want)))
	rig.Is(t, u.Scheme+"://"+u.Host+u.Path, "wss://h:1/base"+RendezvousPath, "where the URL is")
	return want, u.Query()
}

func TestTicket(t *testing.T) {
	t.Parallel()
	g := NewSigner(make([]byte, 32))
	want, query := testTicket(t, g)
	now := want.Expires.Add(-time.Second)
	got, rejection := g.Open(query, now)
	rig.Is(t, got, want, "the ticket")
	rig.Is(t, rejection, "", "rejection")
	rig.Is(t, second(NewSigner([]byte(strings.Repeat("k", 32))).Open(query, now)), RejectInvalidSignature, "of another registry")
	for name, want := range map[string]string{
		paramRole:         RejectMissingRole,
		paramEnvironment:  RejectMalformedQuery,
		paramRegistration: RejectMissingRegistration,
		paramPrincipal:    RejectMalformedQuery,
		paramExpiry:       RejectMissingExpiry,
		paramVersion:      RejectMissingVersion,
		paramSignature:    RejectMissingSignature,
	} {
		for change, values := range map[string][]string{"absent": nil, "empty": {""}} {
			q := clone(query)
			q[name] = values
			rig.Is(t, second(g.Open(q, now)), want, "%s %s", name, change)
		}
		q := clone(query)
		q.Add(name, q.Get(name))
		rig.Is(t, second(g.Open(q, now)), RejectMalformedQuery, "%s twice", name)
	}
	for _, tt := range []struct {
		name, param, value, want string
		now                      time.Time
	}{
		{"expired", paramVersion, "1", RejectExpired, want.Expires},
		{"other version", paramVersion, "2", RejectMalformedQuery, now},
		{"unknown role", paramRole, "executor", RejectInvalidRole, now},
		{"other role", paramRole, "environment", RejectInvalidSignature, now},
		{"other environment", paramEnvironment, "env-2", RejectInvalidSignature, now},
		{"other registration", paramRegistration, "reg_2", RejectInvalidSignature, now},
		{"other principal", paramPrincipal, "key:fedcba9876543210", RejectInvalidSignature, now},
		{"later expiry", paramExpiry, "1900000000", RejectInvalidSignature, now},
		{"same expiry, other spelling", paramExpiry, "+1800000000", RejectInvalidSignature, now},
		{"no number", paramExpiry, "soon", RejectInvalidExpiry, now},
		{"huge number", paramExpiry, strings.Repeat("9", 30), RejectInvalidExpiry, now},
		{"no base64", paramSignature, "!", RejectInvalidSignature, now},
		{"short signature", paramSignature, "AAAA", RejectInvalidSignature, now},
		{"padded signature", paramSignature, query.Get(paramSignature) + "=", RejectInvalidSignature, now},
		{"more", "x", "1", RejectExtraParam, now},
		{"expired and forged", paramRole, "environment", RejectInvalidSignature, want.Expires},
	} {
		got, rejection := g.Open(with(query, tt.param, tt.value), tt.now)
		rig.Is(t, got, Ticket{}, "%s", tt.name)
		rig.Is(t, rejection, tt.want, "%s", tt.name)
	}
}

// TestTicketTampering changes every byte of the signature, and moves characters from one
// signed parameter to the next.
func TestTicketTampering(t *testing.T) {
	t.Parallel()
	g := NewSigner(make([]byte, 32))
	want, query := testTicket(t, g)
	now := want.Expires.Add(-time.Second)
	signature := rig.Value(base64.RawURLEncoding.DecodeString(query.Get(paramSignature)))
	for i := range signature {
		for bit := range 8 {
			signature[i] ^= 1 << bit
			q := with(query, paramSignature, base64.RawURLEncoding.EncodeToString(signature))
			rig.Is(t, second(g.Open(q, now)), RejectInvalidSignature, "byte %d, bit %d", i, bit)
			signature[i] ^= 1 << bit
		}
	}
	// The last character of base64 has bits that a decoder ignores unless it is strict.
	text := query.Get(paramSignature)
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if other := text[:len(text)-1] + string(c); other != text {
			rig.Is(t, second(g.Open(with(query, paramSignature, other), now)), RejectInvalidSignature, "the signature ends in %c", c)
		}
	}
	// Line breaks, which a decoder also ignores unless it is strict.
	for i := range len(text) + 1 {
		for _, c := range "\r\n" {
			q := with(query, paramSignature, text[:i]+string(c)+text[i:])
			rig.Is(t, second(g.Open(q, now)), RejectInvalidSignature, "with %q at %d of the signature", c, i)
		}
	}
	q := with(with(query, paramEnvironment, "env-1r"), paramRegistration, "eg_1")
	rig.Is(t, second(g.Open(q, now)), RejectInvalidSignature, "a letter moved to the next parameter")
	// An authorization is not a ticket, though the same registry signs both.
	key := testKey()
	authorization := g.Authorization(want.EnvironmentID, want.RegistrationID, key, want.Principal, want.Expires)
	q = with(query, paramSignature, authorization[strings.LastIndex(authorization, ".")+1:])
	rig.Is(t, second(g.Open(q, now)), RejectInvalidSignature, "with the MAC of an authorization")
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	g := NewSigner(make([]byte, 32))
	key, expires := testKey(), time.Unix(1_800_000_000, 0)
	now := expires.Add(-time.Second)
	text := g.Authorization("env-1", "reg_1", key, "key:1", expires)
	rig.Is(t, len(text) <= wire.MaxAuthorization, true, "bytes of it: %v, at most %v", len(text), wire.MaxAuthorization)
	rig.Is(t, fmt.Sprint(g.OpenAuthorization(text, "env-1", "reg_1", key, now)), fmt.Sprint("key:1", true), "the principal")
	opens := func(text string) bool { return second(g.OpenAuthorization(text, "env-1", "reg_1", key, now)) }
	for i := range text {
		for _, c := range []byte{'A', 'B', '.', '1', '=', 0, 0xff, text[i] ^ 1} {
			rig.Is(t, opens(text[:i]+string([]byte{c})+text[i+1:]), c == text[i], "with %q at %d it is accepted", c, i)
		}
		for _, c := range "\r\n =" {
			rig.Is(t, opens(text[:i]+string(c)+text[i:]), false, "with another %q at %d it is accepted", c, i)
		}
		rig.Is(t, opens(text[:i]), false, "cut to %d it is accepted", i)
	}
	otherX := *key
	otherX.X25519 = append([]byte{key.X25519[0] ^ 1}, key.X25519[1:]...)
	otherKEM := *key
	otherKEM.MLKEM768 = append(key.MLKEM768[:1183:1183], key.MLKEM768[1183]^1)
	for name, ok := range map[string]func() (string, bool){
		"expired":            func() (string, bool) { return g.OpenAuthorization(text, "env-1", "reg_1", key, expires) },
		"other environment":  func() (string, bool) { return g.OpenAuthorization(text, "env-2", "reg_1", key, now) },
		"other registration": func() (string, bool) { return g.OpenAuthorization(text, "env-1", "reg_2", key, now) },
		"other X25519 key":   func() (string, bool) { return g.OpenAuthorization(text, "env-1", "reg_1", &otherX, now) },
		"other ML-KEM key":   func() (string, bool) { return g.OpenAuthorization(text, "env-1", "reg_1", &otherKEM, now) },
		"shifted ids":        func() (string, bool) { return g.OpenAuthorization(text, "env-1r", "eg_1", key, now) },
		"too long": func() (string, bool) {
			return g.OpenAuthorization(text+strings.Repeat("A", wire.MaxAuthorization), "env-1", "reg_1", key, now)
		},
	} {
		rig.Is(t, fmt.Sprint(ok()), fmt.Sprint("", false), "%s: principal, accepted", name)
	}
}

// FuzzOpenTicket: only a URL that the registry has signed is opened, and only with the
// very spelling of its signature.
func FuzzOpenTicket(f *testing.F) {
	g := NewSigner(make([]byte, 32))
	want, query := testTicket(f, g)
	now := want.Expires.Add(-time.Second)
	f.Add(query.Encode())
	f.Add(strings.Replace(query.Encode(), "signature=", "signature=%0A", 1))
	f.Add("role=environment&expiry=1&version=1")
	f.Add("signature=%00&role=" + strconv.Itoa(1))
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		got, rejection := g.Open(q, now)
		rig.Is(t, rejection == "" && (got != want || q.Encode() != query.Encode()), false, "%q is %+v", raw, got)
	})
}

// FuzzOpenAuthorization: only an authorization that the registry has signed is opened, and
// only with the very spelling of its MAC.
func FuzzOpenAuthorization(f *testing.F) {
	g := NewSigner(make([]byte, 32))
	key := testKey()
	expires := time.Unix(1_800_000_000, 0)
	good := g.Authorization("env", "reg", key, "key:1", expires)
	f.Add(good)
	f.Add(good[:len(good)-8] + "\r" + good[len(good)-8:])
	f.Add("1..." + good)
	f.Add("1.1.1.1")
	f.Fuzz(func(t *testing.T, text string) {
		_, ok := g.OpenAuthorization(text, "env", "reg", key, expires.Add(-time.Second))
		rig.Is(t, ok && text != good, false, "%q is accepted", text)
	})
}

// with returns a query that has another value.
func with(q url.Values, name, value string) url.Values {
	q = clone(q)
	q.Set(name, value)
	return q
}

func clone(q url.Values) url.Values {
	c := make(url.Values, len(q))
	for name, values := range q {
		c[name] = append([]string(nil), values...)
	}
	return c
}
