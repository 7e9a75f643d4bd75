package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/internal/unixsocket"
	"github.com/execagent/execagent/registry"
)

const (
	// startTimeout bounds how long a server may take to open the store and to prepare it.
	startTimeout = 90 * time.Second
	// lonelyPatience is the longest drain of a server with an embedded store. No other server can
	// share that store, so the websockets cannot move to another server.
	lonelyPatience = time.Second
	// gcPercent is half of Go's own value, which keeps the heap small. More frequent collection is
	// cheap here, because thousands of idle websockets make little garbage.
	gcPercent = 50
	// shutdownPatience is how long running requests may still take after the drain. After that,
	// they are cut off.
	shutdownPatience = 5 * time.Second
)

// run opens the store and serves until a signal ends the server. A signal before it serves ends it,
// too.
func (f *serveFlags) run(sys system) error {
	logger := newLogger(sys.stderr, f)
	err := f.runWith(sys, logger)
	if err != nil && f.LogFormat == "json" { // all of standard error is JSON
		logger.Error("the registry ends", "error", err)
		return errLogged
	}
	return err
}

// errLogged is an error that was logged already.
var errLogged = errors.New("the log says why")

func (f *serveFlags) runWith(sys system, logger *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	limitMemory(f.memoryLimit(), os.Getenv("GOMEMLIMIT"))
	orderly, atOnce, stop := sys.endings()
	defer stop()
	done := make(chan error, 1)
	go func() { done <- f.openAndServe(orderly, atOnce, sys, logger) }()
	select {
	case err := <-done:
		return err
	case <-atOnce.Done():
	}
	// Opening an embedded store ignores its context, and may read files for a while.
	select {
	case err := <-done:
		return err
	case <-time.After(shutdownPatience):
		return context.Cause(atOnce)
	}
}

func (f *serveFlags) openAndServe(orderly, atOnce context.Context, sys system, logger *slog.Logger) (err error) {
	err = secretfile.Report(func(warning string) { logger.Warn("other users can read a secret", "reason", warning) }, f.TLSKey, f.NATSCreds)
	if err != nil {
		return err
	}
	served := false
	defer func() {
		if served && err == nil {
			logger.Info("ended")
		}
	}()
	doors, err := f.listen(logger)
	// If the server has served, it has already closed the listeners.
	defer func() { err = errors.Join(err, doors.close()) }()
	if err != nil {
		return err
	}
	st, server, err := f.open(orderly, doors.config, logger)
	if orderly.Err() != nil { // whatever the error of opening the store is
		logger.Info("ended before it could serve", "reason", context.Cause(orderly))
		err = nil
	}
	if st != nil {
		defer func() { err = errors.Join(err, st.Close()) }()
	}
	if server == nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if orderly.Err() != nil {
		return nil
	}
	served = true
	return f.serve(orderly, atOnce, sys, server, doors, logger)
}

// open opens the store and makes the server that uses it. The caller closes each of the two that is
// not nil, even after an error.
func (f *serveFlags) open(ctx context.Context, config *tls.Config, logger *slog.Logger) (*store.Store, *registry.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cfg := f.config(logger)
	cfg.Wait = true
	cfg.Waiting = func(reason string) { logger.Warn("waiting for NATS", "servers", cfg.Place(), "reason", reason) }
	st, err := store.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	var notAfter func() time.Time
	if config != nil {
		notAfter = func() time.Time { return tlsconfig.NotAfter(config) }
	}
	server, err := registry.New(ctx, registry.Config{
		Store:               st,
		PublicURL:           f.PublicURL,
		TrustProxy:          f.TrustProxy,
		Logger:              logger,
		Version:             build.Version(),
		MemoryLimit:         f.memoryLimit(),
		Limits:              f.limits(),
		Grace:               f.Grace,
		ClockSkew:           f.ClockSkew,
		Direct:              f.Direct,
		MetricsElsewhere:    f.Metrics != "",
		CertificateNotAfter: notAfter,
	})
	return st, server, err
}

// doors are the listeners for clients.
type doors struct {
	public  net.Listener
	config  *tls.Config  // nil if the flags name no certificate
	metrics net.Listener // nil if metrics have no port of their own
}

// close closes all listeners that are open.
func (d *doors) close() (err error) {
	for _, l := range []net.Listener{d.public, d.metrics} {
		if l == nil {
			continue
		}
		if closeErr := l.Close(); !errors.Is(closeErr, net.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}
	return err
}

// listen reads the certificate and then listens. A wrong certificate is an error here, because
// otherwise the first client would find it. The caller closes the doors, even after an error.
func (f *serveFlags) listen(logger *slog.Logger) (d doors, err error) {
	if f.TLSCert != "" {
		d.config, err = tlsconfig.Files{Certificate: f.TLSCert, Key: f.TLSKey, Check: secretfile.Refuse}.Server(logger)
		if err != nil {
			return d, fmt.Errorf("reading the certificate: %w", err)
		}
	}
	if unixsocket.Is(f.Listen) {
		d.public, err = listenUnix(f.Listen, f.AllowUID, logger)
	} else {
		d.public, err = net.Listen("tcp", f.address())
	}
	if err != nil || f.Metrics == "" {
		return d, err
	}
	d.metrics, err = net.Listen("tcp", f.Metrics)
	return d, err
}

// serve answers requests until a signal comes. Then it drains: it lets the streams move to other
// servers, and ends.
func (f *serveFlags) serve(orderly, atOnce context.Context, sys system, server *registry.Server, d doors, logger *slog.Logger) error {
	front := registry.NewFront(server, d.public, d.config)
	done := make(chan error, 2)
	go func() { done <- front.Serve() }()
	if d.metrics != nil {
		metrics := registry.NewMetricsFront(server, d.metrics)
		defer metrics.Close()
		go func() {
			if err := metrics.Serve(); err != nil {
				done <- fmt.Errorf("serving metrics: %w", err)
			}
		}()
	}
	// Everything is ready before the URL is printed, because a program that waits for the URL
	// connects at once.
	if err := f.tell(sys, d, logger); err != nil {
		return errors.Join(err, front.Close(), <-done)
	}
	for orderly.Err() == nil {
		select {
		case err := <-done:
			return err
		case <-sys.hangups:
			reload(d.config, logger)
		case <-orderly.Done():
		}
	}
	logger.Info("draining", "reason", context.Cause(orderly))

	patience := f.DrainTimeout
	if f.NATSURL == "" {
		patience = min(patience, lonelyPatience)
	}
	ctx, cancel := context.WithTimeout(atOnce, patience) // a second signal ends the drain at once
	defer cancel()
	if err := server.Drain(ctx); err != nil {
		logger.Warn("websockets that could not be drained are closed", "error", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), shutdownPatience)
	defer cancel()
	if err := front.Shutdown(ctx); err != nil {
		logger.Warn("requests were still running when the time for shutting down ended", "error", err)
		if err := front.Close(); err != nil {
			return err
		}
	}
	return <-done
}

// tell logs the address and the version of the server. If the log is text, the URL is also a line
// on standard output, which scripts wait for.
func (f *serveFlags) tell(sys system, d doors, logger *slog.Logger) error {
	url := "http://" + d.public.Addr().String()
	switch {
	case unixsocket.Is(f.Listen):
		url = f.Listen
	case d.config != nil:
		url = "https://" + d.public.Addr().String()
	}
	about := []any{"url", url, "version", build.Version()}
	if f.NATSURL != "" {
		about = append(about, "store", "nats", "servers", f.config(nil).Place())
	} else {
		about = append(about, "store", "embedded", "data", f.Data)
	}
	if d.metrics != nil {
		about = append(about, "metrics", "http://"+d.metrics.Addr().String()+"/metrics")
	}
	logger.Info("listening", about...)
	host, _, err := net.SplitHostPort(f.address())
	switch {
	case d.metrics != nil:
	case unixsocket.Is(f.Listen), f.BehindProxy, f.TrustProxy:
		logger.Warn("everybody whom the proxy in front lets in can read /metrics: move it to another address with --metrics-listen")
	case err == nil && !loopback(host):
		logger.Warn("everybody who can reach this port can read /metrics: move it to another address with --metrics-listen")
	}
	if f.LogFormat == "json" {
		return nil
	}
	if _, err := fmt.Fprintln(sys.stdout, url); err != nil {
		return fmt.Errorf("printing the URL: %w", err)
	}
	return nil
}

// reload checks for a new certificate, as each handshake does. The check logs an error of the
// certificate.
func reload(config *tls.Config, logger *slog.Logger) {
	if config == nil {
		logger.Info("SIGHUP changes nothing, because there is no certificate")
		return
	}
	logger.Info("SIGHUP: the certificate's files were checked for changes", "not_after", tlsconfig.NotAfter(config))
}

// newLogger returns a logger of the level and format that the flags name.
func newLogger(w io.Writer, flags *serveFlags) *slog.Logger {
	var level slog.Level
	// The parser has checked that the level is one of the names.
	_ = level.UnmarshalText([]byte(flags.LogLevel))
	options := &slog.HandlerOptions{Level: level}
	if flags.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
