package auth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/paths"
)

// keyFresh is how long a new key counts as the answer to a 401, because the request that got the
// 401 may be older than the key.
const keyFresh = 10 * time.Second

// maxKeyFile is the greatest length of the file, including white space around the key, in bytes.
const maxKeyFile = 2 * maxToken

// KeyFileConfig configures [OpenKeyFile].
type KeyFileConfig struct {
	// Check returns the reason why the file must not be used, or nil. It is called before each
	// reading; a nil Check checks nothing.
	Check func(path string) error
	// Logger logs when the key was read again, and why that failed; nil discards.
	Logger *slog.Logger
}

// OpenKeyFile returns a source of the API key in a file; white space around the key is ignored. The
// file is read now, again before a request if it has changed, and when the registry answered 401.
// While the file cannot be used, the previous key counts.
func OpenKeyFile(path string, cfg KeyFileConfig) (TokenSource, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	k := &keyFile{path: path, cfg: cfg}
	if err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

// keyFile is a key in a file that other programs renew.
type keyFile struct {
	redacted

	path string
	cfg  KeyFileConfig

	mu      sync.Mutex
	key     *string
	state   paths.State // of the file that the key is from
	renewed time.Time   // when another key was read; zero: never
	failed  string      // why the file could not be used; "" if it could
}

// Authorize sets the key, after checking whether the file has changed.
func (k *keyFile) Authorize(ctx context.Context, header http.Header) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state.Changed() {
		k.renewLocked(ctx)
	}
	header.Set("Authorization", "Bearer "+*k.key)
	return nil
}

// Unauthorized reads the file again, whatever its time says.
func (k *keyFile) Unauthorized(ctx context.Context) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewLocked(ctx)
	return !k.renewed.IsZero() && time.Since(k.renewed) < keyFresh, nil
}

// renewLocked reads the file again, and logs the outcome.
func (k *keyFile) renewLocked(ctx context.Context) {
	was := *k.key
	err := k.read()
	switch {
	case err == nil:
		k.failed = ""
		if *k.key != was {
			k.renewed = time.Now()
			k.cfg.Logger.InfoContext(ctx, "the API key was read again", "file", k.path)
		}
	case err.Error() != k.failed:
		k.failed = err.Error()
		k.cfg.Logger.WarnContext(ctx, "the API key cannot be read again, the former one is still used", "error", err)
	}
}

// read reads the file. It changes nothing if it fails.
func (k *keyFile) read() error {
	state := paths.Look(k.path) // before it is read, so that a later change is seen next time
	if k.cfg.Check != nil {
		if err := k.cfg.Check(k.path); err != nil {
			return err
		}
	}
	text, err := paths.ReadRegular(k.path, maxKeyFile)
	if err != nil {
		return fmt.Errorf("API key: %w", err)
	}
	key := strings.TrimSpace(string(text))
	clear(text)
	if err := checkToken(key); err != nil {
		return fmt.Errorf("API key in %s: %w", k.path, err)
	}
	k.key, k.state = &key, state
	return nil
}
