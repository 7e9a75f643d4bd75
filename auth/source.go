package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// Headers of requests to a registry (remote.md 3).
const (
	headerAccountID = "ChatGPT-Account-ID"
	headerFedRAMP   = "X-OpenAI-Fedramp"
)

// maxToken is the greatest length of any token, in bytes.
const maxToken = 64 << 10

var (
	// ErrTemporary is wrapped by errors of a [TokenSource] after which another try
	// may succeed.
	ErrTemporary = errors.New("temporary failure")
	// ErrExpired says that the credential has expired and that no newer one has
	// come. As in the reference, this ends the call: an executor that registers
	// gives up, a harness that opens a stream is refused. Later calls use a newer
	// credential, if one has come by then (remote.md 12.5).
	ErrExpired = errors.New("the credential has expired")
	// ErrNoCredential says that there is no credential to sign in with.
	ErrNoCredential = errors.New("no credential: set CODEX_API_KEY or sign in")
)

// TokenSource signs the requests that an executor or a harness sends to a registry.
// All methods may run concurrently. [CheckBase] checks whether a source may be used
// for a registry. No source prints its secret.
type TokenSource interface {
	// Authorize sets the headers of one request; it is called for each request. It
	// may call an authorization service first. After an error that wraps
	// [ErrTemporary] another call may succeed; [ErrExpired] and every other error
	// is final.
	Authorize(ctx context.Context, header http.Header) error
	// Unauthorized is called when the registry answered 401 to a request that
	// Authorize signed. If retry is true there is a fresh token, and the caller
	// should send the same request again, once.
	Unauthorized(ctx context.Context) (retry bool, err error)
}

// RequestSigner is a TokenSource whose credential depends on the request. The caller uses
// SignRequest instead of Authorize, once method, URL and body are final. Errors are as for
// Authorize.
type RequestSigner interface {
	TokenSource
	SignRequest(ctx context.Context, r *http.Request, body []byte) error
}

// APIKey returns a source of one API key, blanks around it trimmed (remote.md 12.1).
func APIKey(key string) TokenSource {
	return &bearer{name: "API key", token: new(strings.TrimSpace(key))}
}

// Bearer returns a source of one bearer token, such as the older
// CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN (remote.md 2) or a harness's (remote.md 9).
func Bearer(token string) TokenSource { return &bearer{name: "bearer", token: &token} }

// bearer is a source of one token that never changes.
type bearer struct {
	redacted

	name      string
	token     *string
	account   account // of a ChatGPT token; else empty
	httpsOnly bool    // not even plain http to loopback (remote.md 12.4)
}

func (b *bearer) Authorize(_ context.Context, header http.Header) error {
	if err := checkToken(*b.token); err != nil {
		return fmt.Errorf("%s %w", b.name, err)
	}
	header.Set("Authorization", "Bearer "+*b.token)
	b.account.set(header)
	return nil
}

// Unauthorized has nothing fresher to offer.
func (b *bearer) Unauthorized(context.Context) (bool, error) { return false, nil }

// account is the ChatGPT account that a token speaks for.
type account struct {
	id      string
	fedRAMP bool
}

// set adds the headers of the account. Without an id it adds none, as in the
// reference.
func (a account) set(header http.Header) {
	if a.id == "" {
		return
	}
	header.Set(headerAccountID, a.id)
	if a.fedRAMP {
		header.Set(headerFedRAMP, "true")
	}
}

// checkToken accepts a token that fits into a header as one word: printable ASCII
// without blanks.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("is empty")
	case len(token) > maxToken:
		return fmt.Errorf("is longer than %d bytes", maxToken)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return errors.New("has blanks or characters that are not printable ASCII")
		}
	}
	return nil
}

// redacted is embedded in types that hold secrets, so that no verb of fmt and no
// handler of slog prints them. fmt cannot call methods of values in unexported
// fields. So types that live long keep their secrets behind one more pointer, of
// which fmt prints only the address.
type redacted struct{}

const redaction = "[redacted]"

// Format prints the same word for every verb.
func (redacted) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, redaction) // Format cannot return an error
}

// LogValue returns the same word for slog.
func (redacted) LogValue() slog.Value { return slog.StringValue(redaction) }

// MarshalJSON returns the same word for handlers that print JSON.
func (redacted) MarshalJSON() ([]byte, error) { return []byte(`"` + redaction + `"`), nil }
