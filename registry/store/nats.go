package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
)

// connectNATS connects with the options of all connections. A lost connection is tried
// again for ever. Meanwhile nothing is buffered, so that requests fail at once and
// frames are not sent late. Errors and logs hold no URL, which may have a password in it.
func connectNATS(ctx context.Context, servers string, log *slog.Logger, options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{
		nats.Name("execagent registry"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // an operator may put the credentials right
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil if the store closes the connection
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
