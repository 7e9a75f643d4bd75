package auth

import (
	"context"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/sha512"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/crypto/nacl/box"

	"github.com/execagent/execagent/internal/strictjson"
)

// Where agent identities come from unless the configuration says otherwise, and the
// claims that their tokens must have (remote.md 12.6).
const (
	defaultJWKSBase    = "https://chatgpt.com/backend-api"
	defaultAuthAPIBase = "https://auth.openai.com/api/accounts"

	identityIssuer   = "https://chatgpt.com/codex-backend/agent-identity"
	identityAudience = "codex-app-server"

	taskTries = 3 // in all, without a pause, with the same body
)

// IdentityConfig is what [NewAgentIdentity] needs. It holds a secret.
type IdentityConfig struct {
	// Token is the JWT of CODEX_ACCESS_TOKEN; blanks around it are trimmed.
	Token string `json:"-"`
	// AuthAPIBase is the base URL of the service that registers the task; empty: OpenAI's.
	AuthAPIBase string
	// JWKSBase is the base URL of the keys that sign tokens; empty: OpenAI's.
	JWKSBase string
	HTTP     HTTPConfig
}

// Format hides the token.
func (IdentityConfig) Format(f fmt.State, verb rune) { redacted{}.Format(f, verb) }

// identity is an agent that signs each request with its own key.
type identity struct {
	redacted

	runtimeID string
	taskID    string
	account   account
	key       *ed25519.PrivateKey
}

// NewAgentIdentity fetches the key set, verifies the token and registers a task,
// once for the life of the process. Any failure is final, but it wraps
// [ErrTemporary] if a service could not be reached.
func NewAgentIdentity(ctx context.Context, cfg IdentityConfig) (TokenSource, error) {
	jwks, err := serviceBase(cfg.JWKSBase, defaultJWKSBase)
	if err != nil {
		return nil, fmt.Errorf("address of the agent identity keys %w", err)
	}
	authAPI, err := serviceBase(cfg.AuthAPIBase, defaultAuthAPIBase)
	if err != nil {
		return nil, fmt.Errorf("address of the agent identity service %w", err)
	}
	token := strings.TrimSpace(cfg.Token)
	if token == "" {
		return nil, errors.New("agent identity needs a token in CODEX_ACCESS_TOKEN")
	}
	j, err := parseJWT(token)
	if err != nil {
		return nil, fmt.Errorf("agent identity token %w", err)
	}
	issuer := newIssuer(cfg.HTTP)
	set, err := issuer.keySet(ctx, jwks)
	if err != nil {
		return nil, fmt.Errorf("fetching the agent identity keys: %w", err)
	}
	id, err := verifyIdentity(j, set, time.Now())
	if err != nil {
		return nil, fmt.Errorf("agent identity token %w", err)
	}
	if id.taskID, err = id.registerTask(ctx, issuer, authAPI, time.Now()); err != nil {
		clear(*id.key)
		return nil, fmt.Errorf("registering the agent's task: %w", err)
	}
	return id, nil
}

func serviceBase(raw, byDefault string) (*url.URL, error) {
	if strings.TrimSpace(raw) == "" {
		raw = byDefault
	}
	return CheckBase(raw, nil)
}

// keySet fetches the JWK set.
func (i *issuer) keySet(ctx context.Context, base *url.URL) ([]byte, error) {
	path := "/agent-identities/jwks"
	if strings.Contains(base.Path, "/backend-api") {
		path = "/wham" + path
	}
	status, answer, err := i.call(ctx, http.MethodGet, base.String()+path, nil, keySetTimeout)
	if err != nil {
		return nil, err
	}
	return answer, checkStatus(status)
}

// checkStatus accepts 2xx. Its errors do not repeat the body, which may quote the
// request.
func checkStatus(status int) error {
	switch {
	case status/100 == 2:
		return nil
	case status/100 == 5 || status == http.StatusTooManyRequests:
		return fmt.Errorf("%w: the service answered %d", ErrTemporary, status)
	}
	return fmt.Errorf("the service answered %d", status)
}

// verifyIdentity checks the signature and the claims. The texts of its errors follow
// the words "agent identity token".
func verifyIdentity(j *jwt, set []byte, now time.Time) (*identity, error) {
	if err := j.verify(set); err != nil {
		return nil, err
	}
	if iss, err := j.claims.Text("iss"); err != nil || iss != identityIssuer {
		return nil, errors.New("is of another issuer")
	}
	if !j.audience(identityAudience) {
		return nil, errors.New("is meant for somebody else")
	}
	if exp, ok := j.expiry(); !ok || !now.Before(exp) {
		return nil, errors.New("has expired, or does not say when it does")
	}
	runtimeID, err1 := j.claims.Text("agent_runtime_id")
	accountID, err2 := j.claims.Text("account_id")
	encoded, err3 := j.claims.Text("agent_private_key")
	switch {
	case err1 != nil || !validRuntimeID(runtimeID):
		return nil, errors.New("has no valid agent_runtime_id")
	case err2 != nil || checkToken(accountID) != nil:
		return nil, errors.New("has no valid account_id")
	case err3 != nil:
		return nil, errors.New("has no valid agent_private_key")
	}
	der, err := strictjson.StdBase64.Decode(encoded)
	defer clear(der)
	if err != nil {
		return nil, errors.New("has no valid agent_private_key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("has an agent_private_key that is not Ed25519 in PKCS#8")
	}
	fedRAMP := isTrue(j.claims["chatgpt_account_is_fedramp"])
	return &identity{runtimeID: runtimeID, account: account{accountID, fedRAMP}, key: &key}, nil
}

// registerTask returns the id of a new task.
func (id *identity) registerTask(ctx context.Context, issuer *issuer, base *url.URL, now time.Time) (string, error) {
	timestamp := now.UTC().Format(assertionTime)
	body, err := json.Marshal(struct {
		Timestamp string `json:"timestamp"`
		Signature []byte `json:"signature"`
	}{timestamp, ed25519.Sign(*id.key, []byte(id.runtimeID+":"+timestamp))})
	if err != nil {
		return "", err
	}
	target := base.String() + "/v1/agent/" + url.PathEscape(id.runtimeID) + "/task/register"
	for n := 1; ; n++ {
		status, answer, err := issuer.call(ctx, http.MethodPost, target, body, issueTimeout)
		if err == nil {
			err = checkStatus(status)
		}
		switch {
		case err == nil:
			return id.taskOf(answer)
		case n == taskTries || ctx.Err() != nil || !errors.Is(err, ErrTemporary):
			return "", err
		}
	}
}

// taskOf reads the answer to registerTask: a task id, as text or sealed to the
// agent's key.
func (id *identity) taskOf(answer []byte) (string, error) {
	m, err := strictjson.ParseMap(answer)
	if err != nil {
		return "", fmt.Errorf("the answer %w", err)
	}
	for _, name := range []string{"task_id", "taskId", "encrypted_task_id", "encryptedTaskId"} {
		task, err := m.Text(name)
		if err != nil {
			return "", fmt.Errorf("%s of the answer %w", name, err)
		}
		if task == "" {
			continue
		}
		if strings.HasPrefix(name, "encrypted") {
			if task, err = openTask(*id.key, task); err != nil {
				return "", fmt.Errorf("%s of the answer %w", name, err)
			}
		}
		if !validID(task, maxTaskID) {
			return "", fmt.Errorf("%s of the answer is not valid", name)
		}
		return task, nil
	}
	return "", errors.New("the answer has no task id")
}

// openTask opens a libsodium sealed box in standard base64, with the X25519 key
// that belongs to the Ed25519 seed.
func openTask(key ed25519.PrivateKey, encoded string) (string, error) {
	sealed, err := strictjson.StdBase64.Decode(encoded)
	if err != nil || len(sealed) > maxTaskID+box.AnonymousOverhead {
		return "", errors.New("is not base64 of a sealed task id")
	}
	digest := sha512.Sum512(key.Seed())
	defer clear(digest[:])
	secret, err := ecdh.X25519().NewPrivateKey(digest[:32]) // clamps when it is used
	if err != nil {
		return "", err
	}
	task, ok := box.OpenAnonymous(nil, sealed, (*[32]byte)(secret.PublicKey().Bytes()), (*[32]byte)(digest[:32]))
	if !ok {
		return "", errors.New("is not sealed to the agent's key")
	}
	return string(task), nil
}

// Authorize signs an assertion with the current second as its time.
func (id *identity) Authorize(_ context.Context, header http.Header) error {
	a := Assertion{RuntimeID: id.runtimeID, TaskID: id.taskID, Time: time.Now().UTC()}
	value, err := a.header(*id.key)
	if err != nil {
		return fmt.Errorf("making an agent assertion: %w", err)
	}
	header.Set("Authorization", value)
	id.account.set(header)
	return nil
}

// Unauthorized has nothing fresher to offer: after a 401 no new task is registered
// (remote.md 12.6).
func (id *identity) Unauthorized(context.Context) (bool, error) { return false, nil }
