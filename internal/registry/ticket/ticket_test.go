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
	if u.Scheme != "wss" || u.Host != "h:1" || u.Path != "/base"+RendezvousPath {
		t.Fatalf("URL is at %s://%s%s", u.Scheme, u.Host, u.Path)
	}
	return want, u.Query()
}

func TestTicket(t *testing.T) {
	t.Parallel()
	g := NewSigner(make([]byte, 32))
	want, query := testTicket(t, g)
	now := want.Expires.Add(-time.Second)
	if got, rejection := g.Open(query, now); got != want || rejection != "" {
		t.Errorf("got %+v, %q, want %+v", got, rejection, want)
	}
	if _, rejection := NewSigner([]byte(strings.Repeat("k", 32))).Open(query, now); rejection != RejectInvalidSignature {
		t.Errorf("of another registry: %q", rejection)
	}
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
			if _, rejection := g.Open(q, now); rejection != want {
				t.Errorf("%s %s: %q, want %q", name, change, rejection, want)
			}
		}
		q := clone(query)
		q.Add(name, q.Get(name))
		if _, rejection := g.Open(q, now); rejection != RejectMalformedQuery {
			t.Errorf("%s twice: %q", name, rejection)
		}
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
		q := clone(query)
		q.Set(tt.param, tt.value)
		if got, rejection := g.Open(q, tt.now); rejection != tt.want || got != (Ticket{}) {
			t.Errorf("%s: %+v, %q, want %q", tt.name, got, rejection, tt.want)
		}
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
			q := clone(query)
			q.Set(paramSignature, base64.RawURLEncoding.EncodeToString(signature))
			if _, rejection := g.Open(q, now); rejection != RejectInvalidSignature {
				t.Errorf("byte %d, bit %d: %q", i, bit, rejection)
			}
			signature[i] ^= 1 << bit
		}
	}
	// The last character of base64 has bits that a decoder ignores unless it is strict.
	text := query.Get(paramSignature)
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if other := text[:len(text)-1] + string(c); other != text {
			q := clone(query)
			q.Set(paramSignature, other)
			if _, rejection := g.Open(q, now); rejection != RejectInvalidSignature {
				t.Errorf("the signature ends in %c: %q", c, rejection)
			}
		}
	}
	// Line breaks, which a decoder also ignores unless it is strict.
	for i := range len(text) + 1 {
		for _, c := range "\r\n" {
			q := clone(query)
			q.Set(paramSignature, text[:i]+string(c)+text[i:])
			if _, rejection := g.Open(q, now); rejection != RejectInvalidSignature {
				t.Errorf("with %q at %d of the signature: %q", c, i, rejection)
			}
		}
	}
	q := clone(query)
	q.Set(paramEnvironment, "env-1r")
	q.Set(paramRegistration, "eg_1")
	if _, rejection := g.Open(q, now); rejection != RejectInvalidSignature {
		t.Errorf("a letter moved to the next parameter: %q", rejection)
	}
	// An authorization is not a ticket, though the same registry signs both.
	key := testKey()
	authorization := g.Authorization(want.EnvironmentID, want.RegistrationID, key, want.Principal, want.Expires)
	q = clone(query)
	q.Set(paramSignature, authorization[strings.LastIndex(authorization, ".")+1:])
	if _, rejection := g.Open(q, now); rejection != RejectInvalidSignature {
		t.Errorf("with the MAC of an authorization: %q", rejection)
	}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	g := NewSigner(make([]byte, 32))
	key, expires := testKey(), time.Unix(1_800_000_000, 0)
	now := expires.Add(-time.Second)
	text := g.Authorization("env-1", "reg_1", key, "key:1", expires)
	rig.Is(t, max(len(text), wire.MaxAuthorization), wire.MaxAuthorization, "bytes of it, at most")
	rig.Is(t, fmt.Sprint(g.OpenAuthorization(text, "env-1", "reg_1", key, now)), fmt.Sprint("key:1", true), "the principal")
	for i := range text {
		for _, c := range []byte{'A', 'B', '.', '1', '=', 0, 0xff, text[i] ^ 1} {
			if c == text[i] {
				continue
			}
			if _, ok := g.OpenAuthorization(text[:i]+string([]byte{c})+text[i+1:], "env-1", "reg_1", key, now); ok {
				t.Errorf("with %q at %d it is accepted", c, i)
			}
		}
		for _, c := range "\r\n =" {
			if _, ok := g.OpenAuthorization(text[:i]+string(c)+text[i:], "env-1", "reg_1", key, now); ok {
				t.Errorf("with another %q at %d it is accepted", c, i)
			}
		}
		if _, ok := g.OpenAuthorization(text[:i], "env-1", "reg_1", key, now); ok {
			t.Errorf("cut to %d it is accepted", i)
		}
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
		if p, accepted := ok(); accepted || p != "" {
			t.Errorf("%s: it is accepted", name)
		}
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
		if got, rejection := g.Open(q, now); rejection == "" && (got != want || q.Encode() != query.Encode()) {
			t.Errorf("%q is %+v", raw, got)
		}
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
		if _, ok := g.OpenAuthorization(text, "env", "reg", key, expires.Add(-time.Second)); ok && text != good {
			t.Errorf("%q is accepted", text)
		}
	})
}

func clone(q url.Values) url.Values {
	c := make(url.Values, len(q))
	for name, values := range q {
		c[name] = append([]string(nil), values...)
	}
	return c
}
