package sigv4

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Headers of a signed request.
const (
	headerAuthorization = "Authorization"
	headerDate          = "X-Amz-Date"
	headerToken         = "X-Amz-Security-Token"
	headerContentType   = "Content-Type"
)

// Keys are credentials of AWS, or of a registry that accepts signed requests. No verb of fmt and no
// handler of slog prints them.
type Keys struct {
	AccessKeyID     string // not secret
	SecretAccessKey string
	SessionToken    string    // set for temporary credentials, else empty
	Expires         time.Time // zero: never
}

// Format prints the same word for every verb.
func (Keys) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "[redacted]") // fmt cannot report an error
}

// LogValue returns the same word for slog.
func (Keys) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// Scope is the region and service for which a signature is valid.
type Scope struct{ Region, Service string }

// Sign signs a request with its body. It signs Content-Type, if present, host, date and session
// token, and no other header. It sets the headers Authorization, X-Amz-Date and
// X-Amz-Security-Token, and the host.
func (k Keys) Sign(ctx context.Context, r *http.Request, body []byte, scope Scope, now time.Time) error {
	bare := bareOf(r)
	if values, ok := r.Header[headerContentType]; ok {
		bare.Header[headerContentType] = values
	}
	if err := k.sign(ctx, bare, body, scope, now); err != nil {
		return err
	}
	for _, name := range []string{headerAuthorization, headerDate, headerToken} {
		r.Header.Del(name)
		if value := bare.Header.Get(name); value != "" {
			r.Header.Set(name, value)
		}
	}
	r.Host = bare.Host // without the default port of its scheme, as it was signed
	return nil
}

// bareOf returns a request with the method, URL and host of r and no headers. The copy is needed
// because the signer signs every header that it finds, and writes to the URL.
func bareOf(r *http.Request) *http.Request {
	u := *r.URL
	host := cmp.Or(r.Host, u.Host)
	return &http.Request{Method: r.Method, URL: &u, Host: host, Header: http.Header{}}
}

func (k Keys) sign(ctx context.Context, bare *http.Request, body []byte, scope Scope, now time.Time) error {
	sum := sha256.Sum256(body)
	credentials := aws.Credentials{AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey, SessionToken: k.SessionToken}
	// A signer caches derived keys. Each request gets a new signer, so that no old key stays in
	// memory.
	err := v4.NewSigner().SignHTTP(ctx, credentials, bare, hex.EncodeToString(sum[:]), scope.Service, scope.Region, now.UTC())
	if err != nil {
		return fmt.Errorf("signing the request: %w", err)
	}
	return nil
}
