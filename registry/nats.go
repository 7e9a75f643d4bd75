package registry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Bounds of the embedded server: it keeps keys, registrations and who is online,
// a few KiB for each environment.
const (
	embeddedMemory  = 256 << 20
	embeddedStorage = 4 << 30
	embeddedFilled  = 1 << 30          // of it for each of registrations and replay, at most
	embeddedSync    = 10 * time.Second // of files to disk
	embeddedStart   = 20 * time.Second
)

// Files in the data folder.
const (
	lockFile    = "lock"
	addressFile = "nats.json"
)

// ErrInUse is that another process has the data folder open.
var ErrInUse = errors.New("another process has the data folder open")

// address is how other processes of this machine reach an embedded server.
type address struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// embedded is a NATS server in this process with its files in one folder, which
// it holds a lock on.
type embedded struct {
	server *server.Server
	dir    string
	lock   *os.File
	token  string
}

// startEmbedded makes the folder if need be. It returns ErrInUse, perhaps
// wrapped, when another process has it.
func startEmbedded(dir string, log *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{dir: dir, lock: lock, token: rand.Text()}
	if err := e.start(log); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// lockFolder holds a lock that the system gives up when the process ends.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the data folder: %w", err)
	}
	raw, err := f.SyscallConn()
	if err == nil {
		var lockErr error
		err = raw.Control(func(fd uintptr) { lockErr = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) })
		err = errors.Join(err, lockErr)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking the data folder: %w", err), f.Close())
	}
	return f, nil
}

func (e *embedded) start(log *slog.Logger) error {
	// What a process that was killed has left leads to a port that may be another
	// user's by now.
	next := filepath.Join(e.dir, addressFile+".new")
	for _, old := range []string{filepath.Join(e.dir, addressFile), next} {
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an old address of the embedded NATS server: %w", err)
		}
	}
	options := &server.Options{
		ServerName:             "registry",
		Host:                   "127.0.0.1",
		Port:                   server.RANDOM_PORT,
		Authorization:          e.token,
		NoSigs:                 true,
		JetStream:              true,
		StoreDir:               filepath.Join(e.dir, "nats"),
		JetStreamMaxMemory:     embeddedMemory,
		JetStreamMaxStore:      embeddedStorage,
		SyncInterval:           embeddedSync,
		DisableJetStreamBanner: true,
	}
	s, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("making the embedded NATS server: %w", err)
	}
	s.SetLoggerV2(natsLog{log}, false, false, false)
	e.server = s
	s.Start()
	if !s.ReadyForConnections(embeddedStart) {
		return fmt.Errorf("the embedded NATS server is not ready after %v", embeddedStart)
	}
	text, err := json.Marshal(address{URL: s.ClientURL(), Token: e.token})
	if err != nil {
		return err
	}
	// Whoever reads it sees a whole file; the token is for this user alone.
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return fmt.Errorf("writing the address of the embedded NATS server: %w", err)
	}
	if err := os.Rename(next, filepath.Join(e.dir, addressFile)); err != nil {
		return fmt.Errorf("writing the address of the embedded NATS server: %w", err)
	}
	return nil
}

// close stops the server, waits for it and gives up the folder.
func (e *embedded) close() error {
	if e.server != nil {
		e.server.Shutdown()
		e.server.WaitForShutdown()
	}
	err := os.Remove(filepath.Join(e.dir, addressFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, e.lock.Close())
}

// readAddress says where the process is that has the folder open.
func readAddress(dir string) (address, error) {
	text, err := os.ReadFile(filepath.Join(dir, addressFile))
	if err != nil {
		return address{}, err
	}
	var a address
	if err := json.Unmarshal(text, &a); err != nil {
		return address{}, fmt.Errorf("%s: %w", addressFile, err)
	}
	return a, nil
}

// connectNATS connects with what is common to all connections: they come back
// for ever, and nothing is kept back for a server that is away, so that requests
// fail at once and frames are not sent late. Errors and logs hold no URL, which
// may have a password in it.
func connectNATS(ctx context.Context, servers string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{
		nats.Name("execagent registry"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // credentials can be put right meanwhile
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed here
				log.Warn("NATS connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info("NATS connection is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("NATS reports an error", "error", err)
		}),
	}, options...)
	if deadline, ok := ctx.Deadline(); ok {
		options = append(options, nats.Timeout(time.Until(deadline)))
	}
	nc, err := nats.Connect(servers, options...)
	if err != nil {
		if _, isURL := errors.AsType[*url.Error](err); isURL {
			err = errors.New("the URL cannot be parsed")
		}
		return nil, fmt.Errorf("connecting to NATS: %w", err)
	}
	return nc, nil
}

// natsLog is where the embedded server's log goes.
type natsLog struct{ log *slog.Logger }

func (l natsLog) say(level slog.Level, format string, args []any) {
	if ctx := context.Background(); l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "embedded NATS server", "text", fmt.Sprintf(format, args...))
	}
}

func (l natsLog) Noticef(format string, args ...any) { l.say(slog.LevelDebug, format, args) }
func (l natsLog) Warnf(format string, args ...any)   { l.say(slog.LevelWarn, format, args) }
func (l natsLog) Fatalf(format string, args ...any)  { l.say(slog.LevelError, format, args) }
func (l natsLog) Errorf(format string, args ...any)  { l.say(slog.LevelError, format, args) }
func (l natsLog) Debugf(format string, args ...any)  { l.say(slog.LevelDebug, format, args) }
func (l natsLog) Tracef(format string, args ...any)  { l.say(slog.LevelDebug, format, args) }
