package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// firstFrame is how long the first credential may take (remote.md 12.5).
const firstFrame = 30 * time.Second

// Credentials is a [TokenSource] of bearer tokens that come on stdin, one after
// another (remote.md 12.5). The newest counts from the next request on. All methods
// may run concurrently.
type Credentials struct {
	redacted

	environmentID string
	stdin         *os.File
	done          chan struct{}

	mu      sync.Mutex
	current *frame // never nil once ReadCredentials has returned
	closed  bool
	err     error
}

// ReadCredentials waits at most 30 s for the first frame on stdin. It then reads on
// until stdin ends, a frame is invalid or Close is called. Frames must be for
// environmentID.
//
// A read of a descriptor without deadlines cannot be interrupted: its goroutine
// then stays until the read returns or the process ends. Most inherited
// descriptors have no deadlines.
func ReadCredentials(ctx context.Context, stdin *os.File, environmentID string) (*Credentials, error) {
	return readCredentials(ctx, stdin, environmentID, firstFrame)
}

func readCredentials(ctx context.Context, stdin *os.File, environmentID string, patience time.Duration) (*Credentials, error) {
	c := &Credentials{environmentID: environmentID, stdin: stdin, done: make(chan struct{})}
	first := make(chan struct{})
	go c.run(first)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var err error
	select {
	case <-first:
		return c, nil
	case <-c.done:
		select {
		case <-first: // the first frame came, and the end right after it
			return c, nil
		default:
		}
		if err = c.Err(); err == nil {
			err = errors.New("stdin ended before the first executor credential")
		}
	case <-timer.C:
		err = fmt.Errorf("no executor credential on stdin within %v", patience)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.Close()
	return nil, err
}

// run reads frames until it fails or stdin ends. It closes first after the first
// frame.
func (c *Credentials) run(first chan struct{}) {
	defer close(c.done)
	l := &lines{r: c.stdin, buf: make([]byte, maxFrameLine)}
	defer clear(l.buf)
	for n := 0; ; n++ {
		line, err := l.next()
		if err == nil {
			err = c.take(line)
		}
		if err != nil {
			c.mu.Lock()
			if !c.closed && !errors.Is(err, io.EOF) {
				c.err = fmt.Errorf("executor credential on stdin: %w", err)
			}
			c.mu.Unlock()
			return
		}
		if n == 0 {
			close(first)
		}
	}
}

// take makes a frame the current credential.
func (c *Credentials) take(line []byte) error {
	f, err := parseFrame(line, c.environmentID, time.Now())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = f
	return nil
}

// frameMembers are the members of each line, sorted.
var frameMembers = []string{"environment_id", "expires_at", "token", "version"}

// frame is one valid line of stdin.
type frame struct {
	redacted

	token   string
	expires int64 // Unix seconds
}

func parseFrame(line []byte, environmentID string, now time.Time) (*frame, error) {
	m, err := strictjson.ParseMap(line)
	version, errVersion := m.Int64("version")
	environment, errEnvironment := m.Text("environment_id")
	token, errToken := m.Text("token")
	expires, errExpires := m.Int64("expires_at")
	err = errors.Join(err, errVersion, errEnvironment, errToken, errExpires)
	switch {
	case err != nil || !slices.Equal(slices.Sorted(maps.Keys(m)), frameMembers):
		return nil, errors.New("line is not a JSON object of the expected members")
	case version != 1:
		return nil, errors.New("version is not 1")
	case environment != environmentID:
		return nil, errors.New("environment_id names another environment")
	case now.Unix() >= expires:
		return nil, errors.New("expires_at is in the past")
	}
	if err := checkToken(token); err != nil {
		return nil, fmt.Errorf("token %w", err)
	}
	return &frame{token: token, expires: expires}, nil
}

// Authorize sets the newest bearer, or fails with [ErrExpired].
func (c *Credentials) Authorize(_ context.Context, header http.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Unix() >= c.current.expires {
		return ErrExpired
	}
	header.Set("Authorization", "Bearer "+c.current.token)
	return nil
}

// Unauthorized has nothing fresher to offer: the program that writes to stdin
// decides when the next token comes.
func (c *Credentials) Unauthorized(context.Context) (bool, error) { return false, nil }

// Done is closed when stdin is no longer read; [Credentials.Err] returns the
// reason. The reference then ends its process, with status 1 if there is an error,
// else 0.
func (c *Credentials) Done() <-chan struct{} { return c.done }

// Err returns the error of an invalid or expired frame, of a frame for another
// environment, or of a failed read. It is nil while stdin is read, after stdin
// has ended between two frames, and after Close.
func (c *Credentials) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close stops reading; the newest credential stays usable. It may be called more than once.
func (c *Credentials) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if interrupt(c.stdin) {
		<-c.done
	}
}
