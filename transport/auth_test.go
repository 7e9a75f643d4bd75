package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

const testSecret = "0123456789abcdef0123456789abcdef"

// now is the time of every check in these tests.
const now = 1_700_000_000

func writeFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	rig.Must(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func verdict(v *jwtVerifier, token string, now int64) error {
	_, _, err := v.check(token, now)
	return err
}

func check(a *Authenticator, authorization ...string) error {
	header := http.Header{}
	for _, value := range authorization {
		header.Add("Authorization", value)
	}
	_, _, err := a.check(header, time.Unix(now, 0))
	return err
}

func TestCapabilityToken(t *testing.T) {
	t.Parallel()
	fromFile, err := capabilityToken(writeFile(t, " \ttok en1\r\n"))
	rig.Must(t, err)
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte("tok en1")))
	lower, err := capabilityTokenSHA256(digest)
	rig.Must(t, err)
	upper, err := capabilityTokenSHA256(strings.ToUpper(digest))
	rig.Must(t, err)
	for _, row := range rig.Rows(t, "testdata/claims.txt", "tokens", 3) {
		values := strings.Split(row[1], "|")
		if row[1] == "-" {
			values = nil
		}
		for source, a := range map[string]*Authenticator{"file": fromFile, "digest": lower, "upper case digest": upper} {
			rig.Is(t, errText(check(a, values...)), row[2], "%s, by %s", row[0], source)
		}
	}
	rig.Is(t, check(&Authenticator{}, "Bearer tok en1") == nil, false, "the zero Authenticator lets a token in")
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// sign makes a JWT of any header and payload.
func sign(header, payload, secret string, newHash func() hash.Hash) string {
	body := encodePart(header) + "." + encodePart(payload)
	mac := hmac.New(newHash, []byte(secret))
	mac.Write([]byte(body))
	return body + "." + encodePart(string(mac.Sum(nil)))
}

func encodePart(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestSignedBearer(t *testing.T) {
	t.Parallel()
	const (
		invalid = "invalid websocket jwt"
		hs256   = `{"alg":"HS256"}`
	)
	secretFile := writeFile(t, "\n"+testSecret+" \n")
	build := func(config signedBearerConfig) *Authenticator {
		config.SecretFile = secretFile
		a, err := signedBearer(config)
		rig.Must(t, err)
		return a
	}
	plain := build(signedBearerConfig{})
	skewed := build(signedBearerConfig{MaxClockSkew: DefaultClockSkew})
	widest := build(signedBearerConfig{MaxClockSkew: 1<<63 - 1})
	strict := build(signedBearerConfig{Issuer: "i", Audience: "a"})

	by := map[string]*Authenticator{"plain": plain, "skewed": skewed, "widest": widest, "strict": strict}
	for _, row := range rig.Rows(t, "testdata/claims.txt", "claims", 4) {
		token := sign(hs256, row[2], testSecret, sha256.New)
		rig.Is(t, errText(check(by[row[1]], "Bearer "+token)), row[3], "%s", row[0])
	}

	const good = `{"exp":1700000100}`
	token := sign(hs256, good, testSecret, sha256.New)
	parts := strings.Split(token, ".")
	for _, tt := range []struct {
		name, token, want string
	}{
		{"good", token, ""},
		{"typ", sign(`{"typ":"x","alg":"HS256"}`, good, testSecret, sha256.New), ""},
		{"other secret", sign(hs256, good, strings.ToUpper(testSecret), sha256.New), invalid},
		{"other secret and expired", sign(hs256, `{"exp":1}`, strings.ToUpper(testSecret), sha256.New), invalid},
		{"HS384", sign(`{"alg":"HS384"}`, good, testSecret, sha512.New384), invalid},
		{"HS512", sign(`{"alg":"HS512"}`, good, testSecret, sha512.New), invalid},
		{"HS384 named HS256", sign(hs256, good, testSecret, sha512.New384), invalid},
		{"HS256 named HS384", sign(`{"alg":"HS384"}`, good, testSecret, sha256.New), invalid},
		{"none, signed", sign(`{"alg":"none"}`, good, testSecret, sha256.New), invalid},
		{"none", encodePart(`{"alg":"none"}`) + "." + encodePart(good) + ".", invalid},
		{"lower case", sign(`{"alg":"hs256"}`, good, testSecret, sha256.New), invalid},
		{"no alg", sign(`{}`, good, testSecret, sha256.New), invalid},
		{"alg twice", sign(`{"alg":"none","alg":"HS256"}`, good, testSecret, sha256.New), invalid},
		{"crit", sign(`{"alg":"HS256","crit":["x"]}`, good, testSecret, sha256.New), invalid},
		{"header is no object", sign(`"HS256"`, good, testSecret, sha256.New), invalid},
		{"data behind the header", sign(hs256+"x", good, testSecret, sha256.New), invalid},
		{"changed payload", parts[0] + "." + encodePart(`{"exp":1700000200}`) + "." + parts[2], invalid},
		{"no signature", parts[0] + "." + parts[1] + ".", invalid},
		{"short signature", token[:len(token)-4], invalid},
		{"padding", token + "=", invalid},
		{"signature in other bits", token[:len(token)-1] + nextLetter(token[len(token)-1]), invalid},
		{"two parts", parts[0] + "." + parts[1], invalid},
		{"four parts", token + ".", invalid},
		{"not a token", "abc", invalid},
		{"too large", sign(hs256, `{"exp":1700000100,"q":"`+strings.Repeat("x", maxJWT)+`"}`, testSecret, sha256.New), invalid},
	} {
		rig.Is(t, errText(check(plain, "Bearer "+tt.token)), tt.want, "%s", tt.name)
	}
	rig.Is(t, errText(verdict(plain.jwt, parts[0]+"."+parts[1]+"."+parts[2][:9]+"\n"+parts[2][9:], now)), invalid, "line break in the signature")
	for value, want := range map[string]string{
		"Basic x": "invalid authorization header",
		"Bearer":  "invalid authorization header",
	} {
		rig.Is(t, errText(check(plain, value)), want, "%q", value)
	}
	rig.Is(t, check(plain), errTokenMissing, "no header")
}

// nextLetter changes a last base64 letter in the two bits that 32 bytes leave
// unused.
func nextLetter(c byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, c)|1])
}

func TestAuthOptions(t *testing.T) {
	t.Parallel()
	token := writeFile(t, "secret-token\n")
	digest := strings.Repeat("aB", 32)
	secret := writeFile(t, testSecret)
	for _, tt := range []struct {
		name string
		o    AuthOptions
		want string // in the error; "" for success
	}{
		{"nothing", AuthOptions{}, ""},
		{"token file", AuthOptions{Mode: "capability-token", TokenFile: token}, ""},
		{"digest", AuthOptions{Mode: "capability-token", TokenSHA256: digest}, ""},
		{"secret", AuthOptions{Mode: "signed-bearer-token", SecretFile: secret}, ""},
		{"secret and all", AuthOptions{Mode: "signed-bearer-token", SecretFile: secret, Issuer: "i", Audience: "a", MaxClockSkew: new(int64(0))}, ""},
		{"unknown mode", AuthOptions{Mode: "magic"}, `"magic"`},
		{"options without a mode", AuthOptions{TokenFile: token}, "--ws-auth"},
		{"skew without a mode", AuthOptions{MaxClockSkew: new(int64(0))}, "--ws-auth"},
		{"no source", AuthOptions{Mode: "capability-token"}, "--ws-token-file"},
		{"both sources", AuthOptions{Mode: "capability-token", TokenFile: token, TokenSHA256: digest}, "--ws-token-sha256"},
		{"token with an issuer", AuthOptions{Mode: "capability-token", TokenFile: token, Issuer: "i"}, "signed-bearer-token"},
		{"no secret", AuthOptions{Mode: "signed-bearer-token"}, "--ws-shared-secret-file"},
		{"secret with a token", AuthOptions{Mode: "signed-bearer-token", SecretFile: secret, TokenFile: token}, "capability-token"},
		{"missing file", AuthOptions{Mode: "capability-token", TokenFile: token + "x"}, token + "x"},
		{"missing secret", AuthOptions{Mode: "signed-bearer-token", SecretFile: token + "x"}, token + "x"},
		{"empty file", AuthOptions{Mode: "capability-token", TokenFile: writeFile(t, " \r\n")}, "is empty"},
		{"empty secret", AuthOptions{Mode: "signed-bearer-token", SecretFile: writeFile(t, "")}, "is empty"},
		{"large file", AuthOptions{Mode: "capability-token", TokenFile: writeFile(t, strings.Repeat("x", maxSecretFile+1))}, "exceeds"},
		{"endless file", AuthOptions{Mode: "capability-token", TokenFile: "/dev/zero"}, "exceeds"},
		{"short secret", AuthOptions{Mode: "signed-bearer-token", SecretFile: writeFile(t, testSecret[1:]+"\n")}, "31 bytes"},
		{"digest too short", AuthOptions{Mode: "capability-token", TokenSHA256: digest[2:]}, "64 hex digits"},
		{"digest too long", AuthOptions{Mode: "capability-token", TokenSHA256: digest + "00"}, "64 hex digits"},
		{"digest not hex", AuthOptions{Mode: "capability-token", TokenSHA256: digest[1:] + "g"}, "64 hex digits"},
		{"negative skew", AuthOptions{Mode: "signed-bearer-token", SecretFile: secret, MaxClockSkew: new(int64(-1))}, "-1"},
		{"skew overflows", AuthOptions{Mode: "signed-bearer-token", SecretFile: secret, MaxClockSkew: new(int64(1 << 62))}, "4611686018427387904"},
	} {
		a, err := tt.o.Authenticator()
		rig.Says(t, err, tt.want, "%s", tt.name)
		if err == nil && (a == nil) != (tt.o.Mode == "") {
			t.Errorf("%s: got %v without an error", tt.name, a)
		}
		for _, forbidden := range []string{"secret-token", testSecret[1:], digest} {
			rig.Is(t, strings.Contains(errText(err), forbidden), false, "%s: the error repeats a secret: %v", tt.name, err)
		}
	}
	a, err := AuthOptions{Mode: "signed-bearer-token", SecretFile: secret}.Authenticator()
	rig.Must(t, err)
	rig.Is(t, time.Duration(a.jwt.skew)*time.Second, DefaultClockSkew, "skew that was not given")
}

// TestExpiry: a connection ends when its token does.
func TestExpiry(t *testing.T) {
	t.Parallel()
	auth := rig.Value(AuthOptions{Mode: "signed-bearer-token", SecretFile: writeFile(t, testSecret), MaxClockSkew: new(int64(0))}.Authenticator())
	var log record
	l := listen(t, Config{Auth: auth, Log: log.logger()})
	for err := error(&StatusError{Status: 401}); err != nil; { // a slow machine needs more than one token
		token := sign(`{"alg":"HS256"}`, fmt.Sprintf(`{"exp":%d}`, time.Now().Unix()), testSecret, sha256.New)
		var c *WebSocket
		if c, err = Dial(t.Context(), l.URL(), DialConfig{Header: http.Header{"Authorization": {"Bearer " + token}}}); err == nil {
			defer c.Close()
		}
	}
	conn := accept(t, l)
	rig.Is(t, rig.Err(conn.Read()), net.ErrClosed, "read of a connection whose token has expired")
	log.await(t, "the right to connect has expired")
	for exp, want := range map[int64]int64{5: 16, 1 << 62: time.Time{}.Unix()} {
		token := sign(`{"alg":"HS256"}`, fmt.Sprintf(`{"exp":%d}`, exp), testSecret, sha256.New)
		_, expires, err := (&jwtVerifier{secret: []byte(testSecret), skew: 10}).check(token, 4)
		rig.Must(t, err)
		rig.Is(t, expires.Unix(), want, "a token until %d and 10 s more expires at", exp)
	}
}

// noDescriptor is a listener where descriptors are short.
type noDescriptor struct{ net.Listener }

func (noDescriptor) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// TestNoDescriptor: that nobody can connect is told once, with the limit.
func TestNoDescriptor(t *testing.T) {
	t.Parallel()
	var log record
	l := &Listener{bound: noDescriptor{}}
	l.refused.begin(log.logger())
	for range 3 {
		rig.Is[error](t, rig.Err(door{l}.Accept()), syscall.EMFILE, "accepted")
	}
	want := regexp.MustCompile(`^\S*"level":"WARN","msg":"nobody can connect: no descriptor is left; raise the limit [^"]*","limit":\d+,[^\n]*\n$`)
	rig.Is(t, want.MatchString(log.String()), true, "the log is one warning:\n%s", log.String())
}
