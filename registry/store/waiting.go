package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream's codes of errors about the number of servers: a cluster has too few (no
// suitable peers), and a server that is in none.
const (
	errCodeNoPeers   = 10005
	errCodeNoCluster = 10074
)

// attemptTimeout bounds one attempt to connect to NATS, or to open or make a bucket: a
// cluster that has just started takes some seconds to make one.
const attemptTimeout = 5 * time.Second

// waiting tells for what opening a store waits: once, and again when the reason changes.
// Its methods may be called at once.
type waiting struct {
	tell func(reason string) // may be nil

	mu   sync.Mutex // protects the field below
	last string
}

// because tells the reason, if it is another one than before.
func (w *waiting) because(reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := reason.Error(); w.tell != nil && w.last != text {
		w.last = text
		w.tell(text)
	}
}

// until calls attempt again and again until it returns nil, an error with which it is
// over, or ctx ends; each time with attemptTimeout. The error is the last one that said
// more than that the time is up.
func (w *waiting) until(ctx context.Context, attempt func(context.Context) (err error, over bool)) error {
	var reason error
	for {
		limited, cancel := context.WithTimeout(ctx, attemptTimeout)
		err, over := attempt(limited)
		cancel()
		if err == nil || over {
			return err
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		if ctx.Err() == nil {
			w.because(reason)
		}
		select {
		case <-ctx.Done():
			return reason
		case <-time.After(busyRetry):
		}
	}
}

// noJetStream says that NATS has no JetStream, or the account has none.
type noJetStream struct{ account bool }

func (e *noJetStream) Error() string {
	if e.account {
		return "this account has no JetStream"
	}
	return "this NATS has no JetStream; start it with -js"
}

// bucketCause says in plain words why a bucket was not opened, and whether that will not
// change by itself.
func bucketCause(err error, replicas int) (cause error, over bool) {
	refused, isAPI := errors.AsType[*jetstream.APIError](err)
	switch {
	case err == nil:
		return nil, false
	case isAPI && refused.ErrorCode == errCodeNoCluster:
		return fmt.Errorf("this NATS is a single server, and can keep no %d replicas (--nats-replicas)", replicas), true
	case isAPI && refused.ErrorCode == errCodeNoPeers:
		return fmt.Errorf("too few servers of the cluster are there for %d replicas (--nats-replicas): %w", max(replicas, 1), err), false
	case isAPI && refused.Code != http.StatusServiceUnavailable:
		return err, true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("JetStream does not answer; does the cluster have a leader? (%w)", err), false
	}
	return err, false
}

// connectCause says in plain words why there is no connection to NATS, and whether that
// will not change by itself.
func connectCause(err error) (cause error, over bool) {
	_, isURL := errors.AsType[*url.Error](err)
	_, isFile := errors.AsType[*fs.PathError](err)
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	network, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case isURL: // its text has the URL, which may have a password in it
		return errors.New("the URL cannot be parsed"), true
	case isFile, isCertificate:
		return err, true
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("it refuses the credentials, or wants some: %w", err), true
	case errors.Is(err, nats.ErrNoServers): // so NATS calls a refused connection
		return errors.New("nobody answers: connection refused"), false
	case isNetwork && network.Op == "dial":
		return fmt.Errorf("nobody answers: %w", network.Err), false
	case errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("nobody answers: %w", err), false
	}
	return err, false
}

// redacted returns the URLs of NATS servers without their users and passwords.
func redacted(servers string) string {
	list := strings.Split(servers, ",")
	for i, server := range list {
		server = strings.TrimSpace(server)
		if at := strings.LastIndexByte(server, '@'); at >= 0 {
			scheme := ""
			if end := strings.Index(server, "://"); end >= 0 && end < at {
				scheme = server[:end+len("://")]
			}
			server = scheme + server[at+1:]
		}
		list[i] = server
	}
	return strings.Join(list, ",")
}
