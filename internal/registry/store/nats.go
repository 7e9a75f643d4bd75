package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// connectNATS connects with the options of all connections. A lost connection is tried
// again for ever. Meanwhile nothing is buffered, so that requests fail at once and
// frames are not sent late. Errors and logs hold no URL, which may have a password in it.
func connectNATS(ctx context.Context, servers string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	away := &outage{log: log}
	options = append([]nats.Option{
		nats.Name("execagent registry"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // an operator may put the credentials right
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { away.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { away.failed(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { away.back() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { away.reported(err) }),
	}, options...)
	if deadline, ok := ctx.Deadline(); ok {
		options = append(options, nats.Timeout(time.Until(deadline)))
	}
	type result struct {
		nc  *nats.Conn
		err error
	}
	connected := make(chan result)
	go func() {
		nc, err := nats.Connect(servers, options...)
		select {
		case connected <- result{nc, err}:
		case <-ctx.Done(): // NATS itself does not look at ctx
			if err == nil {
				nc.Close()
			}
		}
	}()
	select {
	case r := <-connected:
		return r.nc, r.err
	case <-ctx.Done():
		return nil, nats.ErrTimeout
	}
}

// connectCluster connects to the servers of cfg. With cfg.Wait it waits until one answers.
func connectCluster(ctx context.Context, cfg Config, log *slog.Logger, waits *waiting) (nc *nats.Conn, err error) {
	var options []nats.Option
	if cfg.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(cfg.CredentialsFile))
	}
	err = waits.until(ctx, func(ctx context.Context) (error, bool) {
		nc, err = connectNATS(ctx, cfg.URL, log, options...)
		if err == nil {
			return nil, false
		}
		cause, over := connectCause(err)
		return cause, over || !cfg.Wait
	})
	return nc, err
}

// errAway says that the connection to NATS is lost. When it was lost the log has said so,
// and it says when it is back.
var errAway error = away{}

type away struct{}

func (away) Error() string { return "NATS is away" }

// Logged tells that the log has this error already.
func (away) Logged() bool { return true }

// named replaces the errors that requests end with while there is no connection: by their
// names a buffer is full, which has no room for anything on purpose.
func named(err error) error {
	for _, name := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrDisconnected} {
		if errors.Is(err, name) {
			return errAway
		}
	}
	return err
}

// outage logs that the connection to NATS is lost, why it does not come back, and that it
// is back: a line for each change. Its methods may be called at once.
type outage struct {
	log *slog.Logger

	mu     sync.Mutex // protects the fields below
	since  time.Time  // zero while there is a connection
	reason string     // that was logged last
}

// lost notes the end of the connection. err is nil if the store has closed it.
func (o *outage) lost(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil || !o.since.IsZero() {
		return
	}
	o.since, o.reason = time.Now(), ""
	o.log.Warn("NATS connection lost", "error", err)
}

// failed notes that the connection has not come back.
func (o *outage) failed(err error) {
	cause, _ := connectCause(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if text := cause.Error(); !o.since.IsZero() && text != o.reason {
		o.reason = text
		o.log.Warn("NATS is away", "reason", text)
	}
}

func (o *outage) back() {
	o.mu.Lock()
	defer o.mu.Unlock()
	took := time.Since(o.since).Round(time.Millisecond)
	o.since = time.Time{}
	o.log.Info("NATS connection is back", "after", took.String())
}

// reported logs an error that belongs to no request. Those of an attempt to connect come
// here, too, for each attempt.
func (o *outage) reported(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.log.Warn("NATS reports an error", "error", err)
	}
}

// natsLog writes the embedded server's log to log, and calls complained after each line
// that may tell of a failure.
type natsLog struct {
	log        *slog.Logger
	complained func()
}

func (l natsLog) say(level slog.Level, format string, args []any) {
	if ctx := context.Background(); l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "embedded NATS server", "text", fmt.Sprintf(format, args...))
	}
}

func (l natsLog) complain(level slog.Level, format string, args []any) {
	l.say(level, format, args)
	l.complained()
}

func (l natsLog) Noticef(format string, args ...any) { l.say(slog.LevelDebug, format, args) }
func (l natsLog) Warnf(format string, args ...any)   { l.complain(slog.LevelWarn, format, args) }
func (l natsLog) Fatalf(format string, args ...any)  { l.complain(slog.LevelError, format, args) }
func (l natsLog) Errorf(format string, args ...any)  { l.complain(slog.LevelError, format, args) }
func (l natsLog) Debugf(format string, args ...any)  { l.say(slog.LevelDebug, format, args) }
func (l natsLog) Tracef(format string, args ...any)  { l.say(slog.LevelDebug, format, args) }
