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

// keyFresh is for how long a new key counts as the answer to a 401, since the request that got
// the 401 may be older than the key.
const keyFresh = 10 * time.Second

// maxKeyFile is how long the file may be, with the white space around the key, in bytes.
const maxKeyFile = 2 * maxToken

// KeyFileConfig is what [OpenKeyFile] needs beside the file.
type KeyFileConfig struct {
	// Check says why the file must not be used; nil checks nothing. It is called before each
	// reading.
	Check func(path string) error
	// Logger hears when the key was read again, and why that failed; nil: nobody.
	Logger *slog.Logger
}

// OpenKeyFile returns a source of the API key in a file, with white space around it. It is read
// now, again before a request where the file has changed, and when the registry has answered 401.
// While the file cannot be used the former key counts.
func OpenKeyFile(path string, cfg KeyFileConfig) (TokenSource, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	k := &keyFile{path: path, cfg: cfg}
	if err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

// keyFile is a key in a file that others renew.
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

// Authorize shows the key, after a look whether it is still the one in the file.
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

// renewLocked reads the file again, and says what has come of it.
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
	state := paths.Look(k.path) // before it is read: what changes since is seen next time
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
