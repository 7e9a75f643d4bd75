package transport

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/paths"
)

// The answers, with status 401, to a client whose token is refused (rpc.md 1.6).
// The texts are constant, so that no part of a token is repeated.
var (
	errTokenMissing   = errors.New("missing websocket bearer token")
	errAuthorization  = errors.New("invalid authorization header")
	errToken          = errors.New("invalid websocket bearer token")
	errJWT            = errors.New("invalid websocket jwt")
	errJWTExpired     = errors.New("expired websocket jwt")
	errJWTNotYetValid = errors.New("websocket jwt is not valid yet")
	errJWTIssuer      = errors.New("websocket jwt issuer mismatch")
	errJWTAudience    = errors.New("websocket jwt audience mismatch")
)

const (
	// DefaultClockSkew is the default of --ws-max-clock-skew-seconds.
	DefaultClockSkew = 30 * time.Second

	minSecret     = 32      // bytes of a HMAC key; rpc.md 1.6
	maxSecretFile = 1 << 16 // bytes; a larger file is no secret
)

// Authenticator decides who may open a WebSocket, by the bearer token of the
// upgrade request. It never changes and may be used by many goroutines. The
// zero value refuses every client.
type Authenticator struct {
	digest *[sha256.Size]byte // of the capability token; nil checks a JWT
	jwt    *jwtVerifier
}

// capabilityToken accepts only the token in file, without the white space around
// it. It reads the file now and never again.
func capabilityToken(file string) (*Authenticator, error) {
	token, err := readSecret(file)
	if err != nil {
		return nil, err
	}
	return &Authenticator{digest: new(sha256.Sum256(token))}, nil
}

// capabilityTokenSHA256 accepts only the token whose SHA-256 is digest, 64 hex
// digits of either case.
func capabilityTokenSHA256(digest string) (*Authenticator, error) {
	sum, err := hex.DecodeString(strings.TrimSpace(digest))
	if err != nil || len(sum) != sha256.Size {
		return nil, errors.New("token digest is not 64 hex digits")
	}
	return &Authenticator{digest: new([sha256.Size]byte(sum))}, nil
}

// signedBearerConfig says which JWTs to accept.
type signedBearerConfig struct {
	SecretFile   string        // the HMAC key, at least 32 bytes without the white space around it
	Issuer       string        // wanted iss; "" accepts any and none
	Audience     string        // wanted aud or an element of it; "" accepts any and none
	MaxClockSkew time.Duration // whole seconds, added to exp and subtracted from nbf; 0 is none
}

// signedBearer accepts JWTs signed with HS256. It reads the secret now and
// never again.
func signedBearer(config signedBearerConfig) (*Authenticator, error) {
	if config.MaxClockSkew < 0 {
		return nil, fmt.Errorf("maximum clock skew %v is negative", config.MaxClockSkew)
	}
	secret, err := readSecret(config.SecretFile)
	if err != nil {
		return nil, err
	}
	if len(secret) < minSecret {
		return nil, fmt.Errorf("secret file %s holds %d bytes, want at least %d", config.SecretFile, len(secret), minSecret)
	}
	return &Authenticator{jwt: &jwtVerifier{
		secret:   secret,
		issuer:   config.Issuer,
		audience: config.Audience,
		skew:     int64(config.MaxClockSkew / time.Second),
	}}, nil
}

// readSecret returns the content of file without the white space around it.
func readSecret(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxSecretFile {
		return nil, fmt.Errorf("secret file %s exceeds %d bytes", file, maxSecretFile)
	}
	secret := bytes.TrimSpace(bytes.TrimPrefix(content, []byte(paths.Mark)))
	if len(secret) == 0 {
		return nil, fmt.Errorf("secret file %s is empty", file)
	}
	return secret, nil
}

// check returns the subject of a request with a valid token in its Authorization
// header, and when the token expires; the subject is "" unless a JWT names one, and the
// time is zero for never. Otherwise the text of the error
// is the body of the answer, with status 401.
func (a *Authenticator) check(header http.Header, now time.Time) (subject string, expires time.Time, err error) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return "", expires, errTokenMissing
	}
	token, ok := bearer(values[0])
	if !ok {
		return "", expires, errAuthorization
	}
	if a.jwt != nil {
		return a.jwt.check(token, now.Unix())
	}
	if a.digest == nil {
		return "", expires, errToken
	}
	digest := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(digest[:], a.digest[:]) != 1 {
		return "", expires, errToken
	}
	return "", expires, nil
}

// Authorize returns an error unless a header of an HTTP request has a valid token.
func (a *Authenticator) Authorize(header http.Header) error {
	_, _, err := a.check(header, time.Now())
	return err
}

// bearer returns the token in the value of an Authorization header.
func bearer(value string) (token string, ok bool) {
	for _, b := range []byte(value) {
		if b != '\t' && (b < ' ' || b > '~') {
			return "", false
		}
	}
	scheme, token, ok := strings.Cut(value, " ")
	token = strings.TrimSpace(token)
	return token, ok && token != "" && strings.EqualFold(scheme, "bearer")
}

// AuthOptions are the --ws-auth options as given; "" and nil mean that an
// option was not given.
type AuthOptions struct {
	Mode         string // capability-token or signed-bearer-token
	TokenFile    string
	TokenSHA256  string
	SecretFile   string
	Issuer       string
	Audience     string
	MaxClockSkew *int64 // seconds; nil is DefaultClockSkew
}

// Authenticator checks that the options fit together and reads the files that they
// name. Without options, it returns nil and no error.
func (o AuthOptions) Authenticator() (*Authenticator, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	switch {
	case o.Mode == "":
		return nil, nil
	case o.TokenFile != "":
		return capabilityToken(o.TokenFile)
	case o.TokenSHA256 != "":
		return capabilityTokenSHA256(o.TokenSHA256)
	}
	skew, err := o.skew()
	if err != nil {
		return nil, err
	}
	return signedBearer(signedBearerConfig{SecretFile: o.SecretFile, Issuer: o.Issuer, Audience: o.Audience, MaxClockSkew: skew})
}

// Validate returns an error if the options do not fit together. It reads no file.
func (o AuthOptions) Validate() error {
	token := o.TokenFile != "" || o.TokenSHA256 != ""
	signed := o.SecretFile != "" || o.Issuer != "" || o.Audience != "" || o.MaxClockSkew != nil
	switch o.Mode {
	case "":
		if token || signed {
			return errors.New("authentication options need --ws-auth")
		}
	case "capability-token":
		switch {
		case signed:
			return errors.New("--ws-auth capability-token takes no option of signed-bearer-token")
		case (o.TokenFile == "") == (o.TokenSHA256 == ""):
			return errors.New("--ws-auth capability-token needs one of --ws-token-file and --ws-token-sha256")
		}
	case "signed-bearer-token":
		if token {
			return errors.New("--ws-auth signed-bearer-token takes no option of capability-token")
		}
		if o.SecretFile == "" {
			return errors.New("--ws-auth signed-bearer-token needs --ws-shared-secret-file")
		}
		_, err := o.skew()
		return err
	default:
		return fmt.Errorf("--ws-auth %q is unknown, want capability-token or signed-bearer-token", o.Mode)
	}
	return nil
}

func (o AuthOptions) skew() (time.Duration, error) {
	if o.MaxClockSkew == nil {
		return DefaultClockSkew, nil
	}
	const limit = int64((1<<63 - 1) / time.Second)
	if *o.MaxClockSkew < 0 || *o.MaxClockSkew > limit {
		return 0, fmt.Errorf("--ws-max-clock-skew-seconds %d is not between 0 and %d", *o.MaxClockSkew, limit)
	}
	return time.Duration(*o.MaxClockSkew) * time.Second, nil
}
