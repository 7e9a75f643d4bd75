package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Bounds of the embedded server. It keeps keys, registrations and presences, a few KiB
// for each environment.
const (
	embeddedMemory  = 256 << 20
	embeddedStorage = 4 << 30
	embeddedFilled  = 1 << 30          // part of the storage for registrations, and for replay
	embeddedSync    = 10 * time.Second // between two syncs of files to disk
	embeddedStart   = 20 * time.Second // until the server is ready for connections
)

const (
	// roomNeeded is the number of bytes that must fit into the data folder before a server
	// that could not write is restarted. A server writes far less at its start.
	roomNeeded = 1 << 20
	// readyRoom is the number of bytes that must fit for the store to be ready. Some
	// registrations fit.
	readyRoom = 64 << 10
	// roomRetry is the pause before the folder is tried again, because no event tells that
	// a disk has room again.
	roomRetry = time.Second
	// mostRestartRetry bounds the pause, which doubles with each start that fails.
	mostRestartRetry = 30 * time.Second
)

const lockFile = "lock"

// errInUse says that another process has the data folder open.
var errInUse = errors.New("another process has the data folder open")

// errReopening refuses connections while the embedded server restarts.
var errReopening = errors.New("the embedded NATS server is being started anew")

// embedded is a NATS server in this process with its files in one folder, on which it
// holds a lock. It has no port: this process connects in memory, and commands of an
// operator connect by a socket in the folder, see [beside].
//
// If the disk was full, the server could not write its files, and it does not write again
// when there is room, because each JetStream stream keeps its first error. So tend starts
// another server on the same files as soon as there is room. Connections to NATS reconnect
// themselves, as after a restart of any server. Websockets, and the streams of the relay
// between them, are not affected.
type embedded struct {
	dir  string
	lock *os.File
	log  *slog.Logger
	// prepare makes the buckets that are only in memory, before other connections
	// reconnect to a restarted server.
	prepare func(context.Context, *nats.Conn) error

	beside *beside
	doubt  chan struct{} // has a value after complained, until tend receives it
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex     // protects the fields below
	server *server.Server // nil while no server runs
	failed error          // why nothing can be written; nil if the server can write
}

// startEmbedded makes the folder if there is none, locks it, and starts a server on its
// files. The error wraps errInUse if another process has the lock.
func startEmbedded(dir string, log *slog.Logger, prepare func(context.Context, *nats.Conn) error) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	e := &embedded{dir: dir, lock: lock, log: log, prepare: prepare, doubt: make(chan struct{}, 1)}
	if e.server, err = e.start(); err == nil {
		e.beside, err = listenBeside(dir, e)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	e.wg.Go(func() { e.tend(ctx) })
	return e, nil
}

// lockFolder takes a lock that the system releases when the process ends.
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
		err = errInUse
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking the data folder: %w", err), f.Close())
	}
	return f, nil
}

// start starts a server on the files in the folder.
func (e *embedded) start() (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName:             "registry",
		DontListen:             true,
		NoSigs:                 true,
		JetStream:              true,
		StoreDir:               filepath.Join(e.dir, "nats"),
		JetStreamMaxMemory:     embeddedMemory,
		JetStreamMaxStore:      embeddedStorage,
		SyncInterval:           embeddedSync,
		DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, fmt.Errorf("making the embedded NATS server: %w", err)
	}
	s.SetLoggerV2(natsLog{e.log, e.complained}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(embeddedStart) {
		shutDown(s)
		return nil, fmt.Errorf("the embedded NATS server is not ready after %v", embeddedStart)
	}
	return s, nil
}

// shutDown stops a server and waits for it.
func shutDown(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// InProcessConn connects to the server that runs now.
func (e *embedded) InProcessConn() (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		return nil, errReopening
	}
	return e.server.InProcessConn()
}

// failure returns the reason why nothing can be written now, or nil.
func (e *embedded) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

func (e *embedded) setFailure(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = err
}

// complained makes tend examine the server, which has logged an error or did not write.
func (e *embedded) complained() {
	select {
	case e.doubt <- struct{}{}:
	default: // tend has not received the last value yet
	}
}

// tend restarts the server whenever it has stopped writing, until ctx ends.
func (e *embedded) tend(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.doubt:
		}
		cause := writeError(e.server) // without the mutex, because only tend replaces the server
		if cause == nil {
			continue // the server has logged an unrelated error
		}
		e.log.Error("the store cannot be written, and is opened again once there is room", "folder", e.dir, "error", cause)
		e.setFailure(cause)
		if !e.reopen(ctx) {
			return
		}
		e.setFailure(nil)
		e.log.Info("the store can be written again")
	}
}

// writeError returns the error of a JetStream stream of the server that can no longer be
// written, or nil if all streams can be written.
func writeError(s *server.Server) error {
	health := s.Healthz(&server.HealthzOptions{Details: true})
	// Other statuses are about the start of the server.
	if health.StatusCode != http.StatusServiceUnavailable {
		return nil
	}
	for _, e := range health.Errors {
		// The error "could not be recovered" is left out: a stream that is being made has
		// a folder, but NATS does not know the stream yet.
		if e.Type != server.HealthzErrorStream || !strings.HasSuffix(e.Error, "could not be recovered") {
			return errors.New(e.Error)
		}
	}
	return nil
}

// reopen replaces the server that cannot write by another server on the same files, as soon
// as there is room. Until then the old server stays, because it can still read. reopen
// returns false if ctx ends first.
func (e *embedded) reopen(ctx context.Context) bool {
	retry := roomRetry
	for {
		if haveRoom(e.dir, roomNeeded) == nil {
			err := e.restart(ctx)
			if err == nil {
				return true
			}
			e.log.Warn("the store was not opened again", "error", err)
			retry = min(2*retry, mostRestartRetry)
		}
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// haveRoom writes n bytes to a file in the folder and removes the file. It returns an error if
// the bytes do not fit.
func haveRoom(dir string, n int) error {
	f, err := os.CreateTemp(dir, "room-")
	if err != nil {
		return err
	}
	// The file is removed before it is written, so that its room is free if this process
	// is killed meanwhile.
	if err = os.Remove(f.Name()); err == nil {
		text := make([]byte, n)
		rand.Read(text) // random, so that no file system can compress it
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}

// restart stops the server, if one runs, and starts another server, within OpenTimeout.
func (e *embedded) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	e.mu.Lock()
	old := e.server
	e.server = nil
	e.mu.Unlock()
	if old != nil {
		shutDown(old)
	}
	s, err := e.start()
	if err != nil {
		return err
	}
	if err := e.prepareWith(ctx, s); err != nil {
		shutDown(s)
		return err
	}
	e.mu.Lock()
	e.server = s
	e.mu.Unlock()
	return nil
}

// prepareWith calls prepare for a server that has no other connection yet.
func (e *embedded) prepareWith(ctx context.Context, s *server.Server) error {
	nc, err := nats.Connect(nats.DefaultURL, nats.InProcessServer(s), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("connecting to the embedded NATS server: %w", err)
	}
	defer nc.Close()
	return e.prepare(ctx, nc)
}

// close stops the server, waits for its end and unlocks the folder.
func (e *embedded) close() error {
	if e.stop != nil {
		e.stop()
		e.wg.Wait()
	}
	var err error
	if e.beside != nil {
		err = e.beside.close()
	}
	if e.server != nil {
		shutDown(e.server)
	}
	return errors.Join(err, e.lock.Close())
}
