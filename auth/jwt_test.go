package auth

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func encodePart(v any) string {
	return base64.RawURLEncoding.EncodeToString(rig.Value(json.Marshal(v)))
}

// unsignedJWT is a token that nobody verifies.
func unsignedJWT(claims map[string]any) string {
	return encodePart(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + encodePart(claims) + ".c2ln"
}

// rsaKey is one key for all tests, as it takes long to make.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return rig.Value(rsa.GenerateKey(rand.Reader, 2048)) })

func signedJWT(t *testing.T, header, claims map[string]any) string {
	t.Helper()
	signed := encodePart(header) + "." + encodePart(claims)
	digest := sha256.Sum256([]byte(signed))
	signature := rig.Value(rsa.SignPKCS1v15(nil, rsaKey(), crypto.SHA256, digest[:]))
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// keySetJSON is a JWK set with the test key; changes replace members of its key,
// nil removes one.
func keySetJSON(changes map[string]any) []byte {
	key := map[string]any{
		"kty": "RSA", "kid": "kid-1", "alg": "RS256", "use": "sig",
		"n": base64.RawURLEncoding.EncodeToString(rsaKey().N.Bytes()),
		"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(rsaKey().E)).Bytes()),
	}
	for name, value := range changes {
		if key[name] = value; value == nil {
			delete(key, name)
		}
	}
	return rig.Value(json.Marshal(map[string]any{"keys": []any{map[string]any{"kty": "EC", "kid": "kid-0", "crv": "P-256"}, key}}))
}

func TestVerifyJWT(t *testing.T) {
	t.Parallel()
	header := map[string]any{"alg": "RS256", "kid": "kid-1", "typ": "JWT"}
	claims := map[string]any{"a": "b"}
	good := signedJWT(t, header, claims)
	other := func(name string, value any) string {
		h := map[string]any{"alg": "RS256", "kid": "kid-1"}
		if h[name] = value; value == nil {
			delete(h, name)
		}
		return signedJWT(t, h, claims)
	}
	for _, tt := range []struct {
		name, token string
		set         []byte
		wantErr     string
	}{
		{"good", good, keySetJSON(nil), ""},
		{"key without alg and use", good, keySetJSON(map[string]any{"alg": nil, "use": nil}), ""},
		{"alg none", other("alg", "none"), keySetJSON(nil), "RS256"},
		{"alg HS256", other("alg", "HS256"), keySetJSON(nil), "RS256"},
		{"alg missing", other("alg", nil), keySetJSON(nil), "RS256"},
		{"alg of another spelling", other("alg", "rs256"), keySetJSON(nil), "RS256"},
		{"alg of another kind", other("alg", 1), keySetJSON(nil), "RS256"},
		{"kid missing", other("kid", nil), keySetJSON(nil), "names no key"},
		{"kid unknown", other("kid", "kid-2"), keySetJSON(nil), "does not have"},
		{"kid of a key of another kind", other("kid", "kid-0"), keySetJSON(nil), "does not have"},
		{"payload changed", strings.Replace(good, encodePart(claims), encodePart(map[string]any{"a": "c"}), 1), keySetJSON(nil), "not signed"},
		{"signature changed", good[:len(good)-20] + strings.Repeat("A", 20), keySetJSON(nil), "not signed"},
		{"signature cut", good[:len(good)-2], keySetJSON(nil), "not signed"},
		{"key for encryption", good, keySetJSON(map[string]any{"use": "enc"}), "does not have"},
		{"key of another algorithm", good, keySetJSON(map[string]any{"alg": "PS256"}), "does not have"},
		{"key too short", good, keySetJSON(map[string]any{"n": base64.RawURLEncoding.EncodeToString(rsaKey().N.Bytes()[:128])}), "weak"},
		{"key too long", good, keySetJSON(map[string]any{"n": strings.Repeat("AQAB", 400)}), "not readable"},
		{"key no base64", good, keySetJSON(map[string]any{"n": "!"}), "not readable"},
		{"key with a line break", good, keySetJSON(map[string]any{"e": "AQ\nAB"}), "not readable"},
		{"exponent 1", good, keySetJSON(map[string]any{"e": "AQ"}), "weak"},
		{"exponent even", good, keySetJSON(map[string]any{"e": "BA"}), "weak"},
		{"exponent too long", good, keySetJSON(map[string]any{"e": "AQABAAA"}), "not readable"},
		{"exponent empty", good, keySetJSON(map[string]any{"e": ""}), "not readable"},
		{"another exponent", good, keySetJSON(map[string]any{"e": "Aw"}), "not signed"},
		{"no set", good, []byte("[]"), "not one"},
		{"empty set", good, []byte("{}"), "does not have"},
	} {
		j, err := parseJWT(tt.token)
		if err == nil {
			err = j.verify(tt.set)
		}
		failed(t, tt.name, err, tt.wantErr)
	}
}

func TestParseJWT(t *testing.T) {
	t.Parallel()
	object := encodePart(map[string]any{})
	for _, token := range []string{
		"", ".", "..", "a.b", "a.b.c.d", object + "." + object, object + "." + object + ".!", object + ".!." + "c2ln",
		"!." + object + ".c2ln", encodePart("text") + "." + object + ".c2ln", object + "." + encodePart(nil) + ".c2ln",
		object + "." + encodePart([]int{1}) + ".c2ln", object + "." + object + ".c2\nln", object + "." + object + ".c2l", object + "\r." + object + ".c2ln", object + "." + object + ".c2ln=", strings.Repeat("a", maxToken) + "..",
		object + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"a","iss":"b"}`)) + ".c2ln",
	} {
		rig.Is(t, rig.Err(parseJWT(token)) == nil, false, "parseJWT takes %.40q", token)
	}
}

func TestJWTClaims(t *testing.T) {
	t.Parallel()
	parse := func(claims string) *jwt {
		t.Helper()
		j := rig.Value(parseJWT(encodePart(map[string]any{}) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"))
		return j
	}
	for _, tt := range []struct {
		claims string
		want   int64
		wantOK bool
	}{
		{`{"exp":1795181470}`, 1795181470, true}, {`{"exp":1795181470.9}`, 1795181470, true}, {`{"exp":-0.5}`, -1, true},
		{`{"exp":1e300}`, 1 << 40, true}, {`{"exp":-1e300}`, -(1 << 40), true}, {`{}`, 0, false}, {`{"exp":null}`, 0, false},
		{`{"exp":"1795181470"}`, 0, false}, {`{"EXP":1795181470}`, 0, false}, {`{"exp":1e999}`, 0, false},
	} {
		got, ok := parse(tt.claims).expiry()
		rig.Is(t, ok != tt.wantOK || ok && got.Unix() != tt.want, false,
			"expiry of %s = %v, %v, want %v, %v", tt.claims, got.Unix(), ok, tt.want, tt.wantOK)
	}
	for claims, want := range map[string]bool{
		`{"aud":"a"}`: true, `{"aud":["b","a"]}`: true, `{"aud":"b"}`: false, `{"aud":["b"]}`: false, `{"aud":[1,"a"]}`: false,
		`{}`: false, `{"aud":null}`: false, `{"aud":{"a":"a"}}`: false, `{"Aud":"a"}`: false,
	} {
		rig.Is(t, parse(claims).audience("a"), want, "audience of %s", claims)
	}
	for claims, want := range map[string]account{
		`{"chatgpt_account_id":"x","chatgpt_account_is_fedramp":true}`:   {"x", true},
		`{"chatgpt_account_id":"x","chatgpt_account_is_fedramp":"true"}`: {"x", false},
		`{"chatgpt_account_id":"x"}`:                                     {"x", false},
		`{"chatgpt_account_id":1,"chatgpt_account_is_fedramp":true}`:     {},
		`[]`: {},
	} {
		rig.Is(t, parse(fmt.Sprintf(`{%q:%s}`, claimAuth, claims)).account(), want, "account of %s", claims)
	}
}

func FuzzParseJWT(f *testing.F) {
	f.Add(unsignedJWT(map[string]any{"exp": 1795181470, "aud": []string{"a"}, claimAuth: map[string]any{"chatgpt_account_id": "x"}}), keySetJSON(nil))
	f.Add("a.b.c", []byte("{}"))
	f.Fuzz(func(t *testing.T, token string, set []byte) {
		j, err := parseJWT(token)
		if err != nil {
			return
		}
		j.account()
		j.audience("a")
		at, ok := j.expiry()
		rig.Is(t, ok && at.Format(time.RFC3339) == "", false, "an expiry cannot be formatted")
		rig.Is(t, j.verify(set) == nil, false, "%q, which nobody has signed, is verified", token)
	})
}
