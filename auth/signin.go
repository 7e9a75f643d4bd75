package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// When and where a ChatGPT sign-in is refreshed (remote.md 12.2). The two ages are
// those of the reference, found by observing it.
const (
	defaultRefreshURL = "https://auth.openai.com/oauth/token"
	clientID          = "app_EMoamEEZ73f0CkXaXp7hrann"

	refreshBefore = 5 * time.Minute    // of the access token's expiry
	refreshAfter  = 8 * 24 * time.Hour // if the access token does not say its expiry
)

const (
	reasonExpiry    = "proactive_expiry"
	reasonScheduled = "scheduled"
	reasonForced    = "forced"
)

// SignInConfig configures [OpenSignIn]. It holds a secret.
type SignInConfig struct {
	// APIKey is used instead of the credential in the folder, unless it is blank.
	APIKey string `json:"-"`
	// RefreshURL is the OAuth token endpoint; empty: OpenAI's.
	RefreshURL string
	HTTP       HTTPConfig
	// Logger logs failures that no error returns: of a refresh that is not
	// needed yet, and of saving its result. Nil discards.
	Logger *slog.Logger
}

// Format hides the key.
func (SignInConfig) Format(f fmt.State, verb rune) { redacted{}.Format(f, verb) }

// OpenSignIn returns a source of the API key of cfg, or else of the credential in
// auth.json in home: an API key or a ChatGPT sign-in. A sign-in is refreshed when
// it is due and written back (remote.md 12.1, 12.2). Without any of these, it
// returns [ErrNoCredential].
func OpenSignIn(home string, cfg SignInConfig) (TokenSource, error) {
	if strings.TrimSpace(cfg.APIKey) != "" {
		return APIKey(cfg.APIKey), nil
	}
	if home == "" {
		return nil, ErrNoCredential
	}
	path := filepath.Join(home, "auth.json")
	f, err := readAuthFile(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the sign-in: %w", err)
	case f == nil || f.apiKey == "" && f.signIn == nil:
		return nil, ErrNoCredential
	case f.apiKey != "":
		return APIKey(f.apiKey), nil
	}
	if strings.TrimSpace(cfg.RefreshURL) == "" {
		cfg.RefreshURL = defaultRefreshURL
	}
	refreshURL, err := checkURL(cfg.RefreshURL)
	if err != nil {
		return nil, fmt.Errorf("address of the token service %w", err)
	}
	logger := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &signIn{
		path: path, refreshURL: refreshURL, issuer: newIssuer(cfg.HTTP), logger: logger, renewal: newRenewal(f.signIn),
	}, nil
}

// signIn is a ChatGPT sign-in that lives in auth.json, which other programs may
// refresh as well.
type signIn struct {
	redacted
	renewal[tokens]

	path       string
	refreshURL *url.URL
	issuer     *issuer
	logger     *slog.Logger
}

// Authorize refreshes the tokens first when they are due. If that fails, it uses
// the old tokens, because the registry decides whether they are still valid.
func (s *signIn) Authorize(ctx context.Context, header http.Header) error {
	t := s.current()
	if reason := t.due(time.Now()); reason != "" && !s.paused() {
		fresh, err := s.replace(ctx, t, reason)
		switch {
		case err == nil:
			t = fresh
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			s.logger.WarnContext(ctx, "sign-in is due but cannot be refreshed", "reason", reason, "error", err)
		}
	}
	header.Set("Authorization", "Bearer "+t.access)
	t.account.set(header)
	return nil
}

// Unauthorized refreshes, unless that has just happened.
func (s *signIn) Unauthorized(ctx context.Context) (bool, error) {
	t := s.current()
	if s.fresh() {
		return true, nil
	}
	if _, err := s.replace(ctx, t, reasonForced); err != nil {
		return false, fmt.Errorf("refreshing the sign-in: %w", err)
	}
	return true, nil
}

// due returns the reason why tokens should be refreshed, or "".
func (t *tokens) due(now time.Time) string {
	switch {
	case !t.expiry.IsZero():
		if now.Add(refreshBefore).After(t.expiry) {
			return reasonExpiry
		}
	case now.Sub(t.lastRefresh) > refreshAfter:
		return reasonScheduled
	}
	return ""
}

// replace renews old, which the caller found due or refused. A refresh token works only once, so
// replace first checks whether another program has already renewed it in the file.
func (s *signIn) replace(ctx context.Context, old *tokens, reason string) (*tokens, error) {
	return s.renew(ctx, old, reason == reasonForced, func() (*tokens, error) {
		file, err := readAuthFile(s.path)
		switch {
		case err != nil:
			return nil, err
		case file == nil || file.signIn == nil || file.signIn.accountID != old.accountID:
			return nil, errors.New("auth.json has changed to another sign-in")
		case file.signIn.access != old.access && file.signIn.due(time.Now()) == "":
			return file.signIn, nil
		}
		return s.refresh(ctx, file, reason)
	})
}

// refresh gets new tokens for those of file and writes them back.
func (s *signIn) refresh(ctx context.Context, file *authFile, reason string) (*tokens, error) {
	old := file.signIn
	if old.refresh == "" {
		return nil, errors.New("there is no refresh token; sign in again")
	}
	body, err := json.Marshal(struct {
		ClientID     string `json:"client_id"`
		GrantType    string `json:"grant_type"`
		Reason       string `json:"refresh_reason"`
		RefreshToken string `json:"refresh_token"`
	}{clientID, "refresh_token", reason, old.refresh})
	if err != nil {
		return nil, err
	}
	defer clear(body)
	status, answer, err := s.issuer.call(ctx, http.MethodPost, s.refreshURL.String(), body, issueTimeout)
	defer clear(answer)
	if err == nil {
		err = checkStatus(status)
	}
	if err != nil {
		return nil, err
	}
	t, err := old.replaced(answer, time.Now())
	if err != nil {
		return nil, fmt.Errorf("the answer of the token service: %w", err)
	}
	data, err := file.encode(t)
	if err == nil {
		err = writeAuthFile(s.path, data)
		clear(data)
	}
	if err != nil { // the new tokens can still be used
		s.logger.ErrorContext(ctx, "new sign-in cannot be saved", "error", err)
	}
	return t, nil
}

// replaced returns a copy of t with the tokens of the service's answer. Tokens that
// the answer leaves out stay.
func (t *tokens) replaced(answer []byte, now time.Time) (*tokens, error) {
	m, err := strictjson.ParseMap(answer)
	if err != nil {
		return nil, fmt.Errorf("the content %w", err)
	}
	fresh := &tokens{id: t.id, access: t.access, refresh: t.refresh, accountID: t.accountID, lastRefresh: now}
	for name, into := range map[string]*string{"id_token": &fresh.id, "access_token": &fresh.access, "refresh_token": &fresh.refresh} {
		value, err := m.Text(name)
		if err != nil {
			return nil, fmt.Errorf("%s %w", name, err)
		}
		if value != "" {
			*into = value
		} else if name == "access_token" {
			return nil, errors.New("access_token is missing")
		}
	}
	if err := fresh.derive(); err != nil {
		return nil, err
	}
	return fresh, nil
}
