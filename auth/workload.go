package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/paths"
	"github.com/execagent/execagent/internal/strictjson"
)

// The service that exchanges an identity token, and the bounds of the exchange (remote.md 12.8).
const (
	defaultExchangeURL = "https://auth.openai.com/oauth/token"
	grantType          = "urn:ietf:params:oauth:grant-type:jwt-bearer"

	maxIdentityToken = 16 << 10  // bytes of an identity token
	maxContext       = 1024      // bytes of the context
	maxLifetime      = time.Hour // of an access token
)

// WorkloadConfig is what [NewWorkloadIdentity] needs.
type WorkloadConfig struct {
	// RuleID is the id of the federation rule: OPENAI_FEDERATION_RULE_ID.
	RuleID string
	// TokenFile is the absolute path of the file with the identity token:
	// OPENAI_IDENTITY_TOKEN_FILE. Other programs renew the file.
	TokenFile string
	// TokenSource is the word of OPENAI_IDENTITY_TOKEN_SOURCE. Only a file, the default, is served.
	TokenSource string
	// Context is a JSON object by which the service's log of audits knows the workload:
	// OPENAI_WORKLOAD_IDENTITY_CONTEXT. Empty: none.
	Context string
	// ExchangeURL is the OAuth token endpoint; empty: OpenAI's.
	ExchangeURL string
	// Check returns the reason why the file must not be used, or nil. It is called before each
	// reading; a nil Check checks nothing.
	Check func(path string) error
	HTTP  HTTPConfig
	// Logger logs failures that no error returns, because the former access token is still valid;
	// nil discards.
	Logger *slog.Logger
}

// Valid returns what is wrong with the configuration. It does not read the file.
func (c WorkloadConfig) Valid() error {
	switch {
	case c.TokenSource != "" && c.TokenSource != "file":
		return errors.New("OPENAI_IDENTITY_TOKEN_SOURCE must be file: let another program write the identity token to the file of OPENAI_IDENTITY_TOKEN_FILE")
	case c.RuleID == "":
		return errors.New("workload identity needs the id of a federation rule in OPENAI_FEDERATION_RULE_ID")
	case c.TokenFile == "":
		return errors.New("workload identity needs the file of an identity token in OPENAI_IDENTITY_TOKEN_FILE")
	case !filepath.IsAbs(c.TokenFile):
		return errors.New("OPENAI_IDENTITY_TOKEN_FILE must be an absolute path")
	case c.Context == "":
		return nil
	case len(c.Context) > maxContext:
		return fmt.Errorf("OPENAI_WORKLOAD_IDENTITY_CONTEXT is longer than %d bytes", maxContext)
	}
	m, err := strictjson.ParseMap([]byte(c.Context))
	if err != nil {
		return fmt.Errorf("OPENAI_WORKLOAD_IDENTITY_CONTEXT %w", err)
	}
	if id, err := m.Text("instance_id"); err != nil || id == "" {
		return errors.New("OPENAI_WORKLOAD_IDENTITY_CONTEXT has no instance_id")
	}
	return nil
}

// workload is an identity that another provider has issued. Its token is exchanged for access tokens.
type workload struct {
	redacted
	renewal[access]

	cfg    WorkloadConfig
	url    *url.URL
	issuer *issuer
}

// access is an access token that the service has issued for the identity token.
type access struct {
	redacted

	token       string
	account     account
	due, expiry time.Time // when to get the next one, and when this one ends
}

// NewWorkloadIdentity exchanges the identity token in the file for an access token, and returns a
// source that does so again before the access token expires, and when the registry answers 401. The
// file is read before each exchange. Any failure is final, but it wraps [ErrTemporary] if the
// service could not be reached.
func NewWorkloadIdentity(ctx context.Context, cfg WorkloadConfig) (TokenSource, error) {
	if err := cfg.Valid(); err != nil {
		return nil, err
	}
	exchange, err := checkURL(cmp.Or(cfg.ExchangeURL, defaultExchangeURL))
	if err != nil {
		return nil, fmt.Errorf("address of the token service %w", err)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	w := &workload{cfg: cfg, url: exchange, issuer: newIssuer(cfg.HTTP)}
	token, err := w.identityToken()
	if err != nil {
		return nil, err
	}
	first, err := w.exchange(ctx, token)
	if err != nil {
		return nil, err
	}
	w.renewal = newRenewal(first)
	return w, nil
}

// Authorize gets the next access token first when that is due. While this fails, it uses the former
// one until that expires.
func (w *workload) Authorize(ctx context.Context, header http.Header) error {
	a := w.current()
	now := time.Now()
	expired := now.After(a.expiry)
	if expired || now.After(a.due) && !w.paused() {
		next, err := w.replace(ctx, a, false)
		switch {
		case err == nil:
			a = next
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case expired:
			return err
		default:
			w.cfg.Logger.WarnContext(ctx, "no new access token, the former one is still used", "error", err)
		}
	}
	header.Set("Authorization", "Bearer "+a.token)
	a.account.set(header)
	return nil
}

// Unauthorized gets another access token, unless that has just happened.
func (w *workload) Unauthorized(ctx context.Context) (bool, error) {
	a := w.current()
	if w.fresh() {
		return true, nil
	}
	next, err := w.replace(ctx, a, true)
	if err != nil {
		return false, err
	}
	return next.token != a.token, nil
}

// replace exchanges the identity token that the file holds now. A file that cannot be used may be
// one that is being renewed.
func (w *workload) replace(ctx context.Context, old *access, refused bool) (*access, error) {
	return w.renew(ctx, old, refused, func() (*access, error) {
		token, err := w.identityToken()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTemporary, err)
		}
		next, err := w.exchange(ctx, token)
		if err == nil && next.account.id != old.account.id {
			err = errors.New("the access token is for another account than the former one")
		}
		return next, err
	})
}

// identityToken reads the file.
func (w *workload) identityToken() (string, error) {
	path := w.cfg.TokenFile
	if w.cfg.Check != nil {
		if err := w.cfg.Check(path); err != nil {
			return "", err
		}
	}
	text, err := paths.ReadRegular(path, 2*maxIdentityToken) // with white space around the token
	if err != nil {
		return "", fmt.Errorf("identity token: %w", err)
	}
	defer clear(text)
	token := strings.TrimSpace(string(text))
	err = checkToken(token)
	if err == nil && len(token) > maxIdentityToken {
		err = fmt.Errorf("is longer than %d bytes", maxIdentityToken)
	}
	if err != nil {
		return "", fmt.Errorf("identity token in %s %w", path, err)
	}
	return token, nil
}

// exchange gets an access token for the identity token.
func (w *workload) exchange(ctx context.Context, token string) (*access, error) {
	form := url.Values{"grant_type": {grantType}, "assertion": {token}, "federation_rule_id": {w.cfg.RuleID}}
	if w.cfg.Context != "" {
		form.Set("workload_identity_context", w.cfg.Context)
	}
	body := []byte(form.Encode())
	defer clear(body)
	header := http.Header{"Accept": {"*/*"}, "Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": {""}}
	asked := time.Now() // a lifetime begins no earlier
	status, answer, err := w.issuer.send(ctx, http.MethodPost, w.url.String(), header, body, issueTimeout)
	defer clear(answer)
	if err == nil {
		err = checkStatus(status)
	}
	if err != nil {
		return nil, fmt.Errorf("exchanging the identity token: %w", err)
	}
	a, err := parseAccess(answer, asked)
	if err != nil {
		return nil, fmt.Errorf("exchanging the identity token: the answer: %w", err)
	}
	return a, nil
}

// parseAccess reads the answer to an exchange that began at the time asked.
func parseAccess(answer []byte, asked time.Time) (*access, error) {
	m, err := strictjson.ParseMap(answer)
	if err != nil {
		return nil, fmt.Errorf("the content %w", err)
	}
	token, err1 := m.Text("access_token")
	kind, err2 := m.Text("token_type")
	seconds, err3 := m.Int64("expires_in")
	id, err4 := m.Text("chatgpt_account_id")
	if err1 == nil {
		err1 = checkToken(token)
	}
	if id != "" {
		err4 = cmp.Or(err4, checkToken(id))
	}
	switch {
	case err1 != nil:
		return nil, fmt.Errorf("access_token %w", err1)
	case err2 != nil || !strings.EqualFold(kind, "Bearer"):
		return nil, errors.New("token_type is not Bearer")
	case err3 != nil || seconds <= 0 || seconds > int64(maxLifetime/time.Second):
		return nil, fmt.Errorf("expires_in is not a number of seconds from 1 to %d", int64(maxLifetime/time.Second))
	case err4 != nil:
		return nil, fmt.Errorf("chatgpt_account_id %w", err4)
	}
	lifetime := time.Duration(seconds) * time.Second
	a := &access{token: token, account: account{id: id}, due: asked.Add(lifetime / 5 * 4), expiry: asked.Add(lifetime)}
	if j, err := parseJWT(token); err == nil { // another token is not ours to understand
		a.account.fedRAMP = j.account().fedRAMP
	}
	return a, nil
}
