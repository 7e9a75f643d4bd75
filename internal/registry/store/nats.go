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
// again forever. Meanwhile nothing is buffered, so that requests fail at once and
// frames are not sent late. Errors and logs have no URL, because it may contain a password.
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
		nats.IgnoreAuthErrorAbort(), // because an operator may correct the credentials
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
		case <-ctx.Done(): // nats.Connect does not use ctx
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

// connectCluster connects to the servers of cfg. With cfg.Wait it waits until a server answers.
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

// errAway says that the connection to NATS is lost. The log has a line about the loss, and
// gets a line when the connection is back.
var errAway error = away{}

type away struct{}

func (away) Error() string { return "NATS is away" }

// Logged reports that the log has this error already.
func (away) Logged() bool { return true }

// named replaces the errors of requests without a connection by errAway. Their texts are
// misleading: they say that a buffer is full, but this buffer has the size 0 on purpose.
func named(err error) error {
	for _, name := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrDisconnected} {
		if errors.Is(err, name) {
			return errAway
		}
	}
	return err
}

// outage logs the loss of the connection to NATS, the reason why it does not come back, and
// its return: one line for each change. Its methods may be called concurrently.
type outage struct {
	log *slog.Logger

	mu     sync.Mutex // protects the fields below
	since  time.Time  // zero while there is a connection
	reason string     // the reason that was logged last
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

// reported logs an error that belongs to no request. While the connection is lost it logs
// nothing, because the error of each attempt to connect comes here, too.
func (o *outage) reported(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.log.Warn("NATS reports an error", "error", err)
	}
}

// natsLog writes the embedded server's log to log, and calls complained after each warning
// and error, because it may report a failure.
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
