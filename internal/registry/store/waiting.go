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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream's codes of errors about the number of servers: a cluster with too few servers (no
// suitable peers), and a server that is in no cluster.
const (
	errCodeNoPeers   = 10005
	errCodeNoCluster = 10074
)

// attemptTimeout bounds one attempt to connect to NATS, or to open or make a bucket. A
// cluster that has just started takes some seconds to make a bucket.
const attemptTimeout = 5 * time.Second

// waiting tells the reason why opening a store waits: once, and again when the reason changes.
// Its methods may be called concurrently.
type waiting struct {
	tell func(reason string) // may be nil

	mu   sync.Mutex // protects the field below
	last string
}

// because tells the reason, if it differs from the last reason.
func (w *waiting) because(reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := reason.Error(); w.tell != nil && w.last != text {
		w.last = text
		w.tell(text)
	}
}

// until calls attempt every busyRetry, each time with attemptTimeout. It ends when attempt
// returns nil or over, or when ctx ends. At the end of ctx, it returns the last error before
// that end, because an error after the end says only that the time is up.
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

// noJetStream says that NATS or the account has no JetStream.
type noJetStream struct{ account bool }

func (e *noJetStream) Error() string {
	if e.account {
		return "this account has no JetStream"
	}
	return "this NATS has no JetStream; start it with -js"
}

// bucketCause returns the cause why a bucket was not opened, in plain words. over reports
// whether a further attempt is useless.
func bucketCause(err error, replicas int) (cause error, over bool) {
	refused, isAPI := errors.AsType[*jetstream.APIError](err)
	switch {
	case err == nil:
		return nil, false
	case isAPI && refused.ErrorCode == errCodeNoCluster:
		return fmt.Errorf("this NATS is a single server and cannot keep %d replicas (--nats-replicas)", replicas), true
	case isAPI && refused.ErrorCode == errCodeNoPeers:
		return fmt.Errorf("the cluster has too few servers for %d replicas (--nats-replicas): %w", max(replicas, 1), err), false
	case isAPI && refused.Code != http.StatusServiceUnavailable:
		return err, true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("JetStream does not answer; does the cluster have a leader? (%w)", err), false
	}
	return err, false
}

// connectCause returns the cause why there is no connection to NATS, in plain words. over
// reports whether a further attempt is useless.
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
		return fmt.Errorf("it refuses the credentials, or needs credentials: %w", err), true
	case errors.Is(err, nats.ErrNoServers): // NATS returns this error for a refused connection
		return errors.New("nobody answers: connection refused"), false
	case isNetwork && network.Op == "dial":
		return fmt.Errorf("nobody answers: %w", nameless(network.Err)), false
	case errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("nobody answers: %w", err), false
	}
	return err, false
}

// nameless returns the error of an attempt to connect without the name or port in it, because
// the name may be a part of a password, see redacted.
func nameless(err error) error {
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("lookup of its name: %s", lookup.Err)
	}
	if address, ok := errors.AsType[*net.AddrError](err); ok {
		return errors.New(address.Err)
	}
	return err
}

// redacted returns the URLs of NATS servers without their users and passwords: their
// schemes and hosts. It may be unclear where the host of a URL is, because a password may
// contain a comma or any other character. Then redacted returns the position of the URL in the
// list instead.
func redacted(servers string) string {
	list := strings.Split(servers, ",")
	last := -1 // the last element with an @: the elements before it may be parts of its password
	mixed := false
	for i, server := range list {
		list[i] = strings.TrimSpace(server)
		if strings.Contains(server, "@") {
			last = i
		}
		mixed = mixed || !strings.Contains(server, "://")
	}
	shown := make([]string, len(list))
	for i, server := range list {
		host, ok := hostOf(server)
		if i < last && (mixed || !strings.Contains(server, "@")) || !ok {
			host = fmt.Sprintf("server %d of the list", i+1)
		}
		shown[i] = host
	}
	return strings.Join(shown, ",")
}

// hostOf returns the scheme and host of a server's URL. ok is false if the URL has other parts
// than these and a user and a password.
func hostOf(server string) (host string, ok bool) {
	scheme, rest, has := strings.Cut(server, "://")
	if !has {
		scheme, rest = "", server
	}
	u, err := url.Parse("nats://" + rest)
	if err != nil || u.Host == "" || has && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
		return "", false
	}
	if strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return "", false
	}
	if has {
		scheme += "://"
	}
	return scheme + u.Host, true
}
