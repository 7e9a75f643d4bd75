package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/netutil"

	"github.com/execagent/execagent/cmd/internal/program"
)

const (
	// maxMessage bounds a message of a client, in bytes: the arguments of a call, and what is around them.
	maxMessage = 2*maxArguments + 1<<20
	// maxConnections bounds the connections of HTTP clients.
	maxConnections = 128
	// headerTime is how long a client may take for the header of a request, idleTime until the next request.
	headerTime, idleTime = 10 * time.Second, 2 * time.Minute
	// requestTime is how long a client may take for a request. The time runs on while the call does.
	requestTime = 2 * time.Minute
	// lastWords is how long answers may take after the end. A client may not read them at all.
	lastWords = 5 * time.Second
)

// serveStdio serves the client that has started this program, until it closes standard input.
func (s *server) serveStdio(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.cancel)() // the library waits for calls that run
	in := &input{File: s.sys.Stdin, ended: s.cancel}
	served := make(chan error, 1)
	go func() {
		served <- s.mcp.Run(ctx, &mcp.IOTransport{Reader: in, Writer: &output{s.sys.Stdout, s.cancel}, MaxLineLength: maxMessage})
	}()
	select {
	case err := <-served:
		if errors.Is(err, io.EOF) || in.gone() || s.ctx.Err() != nil {
			return nil
		}
		return err
	case <-s.late.Done():
		return nil // a write to the client cannot be interrupted; it ends with this program
	}
}

// input is standard input. Its end is the end of the client, so all calls end too, as nobody reads their answers.
type input struct {
	File  io.ReadCloser
	ended func()

	mu   sync.Mutex
	over bool
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.File.Read(p)
	if err != nil {
		i.mu.Lock()
		i.over = true
		i.mu.Unlock()
		i.ended()
	}
	return n, err
}

func (i *input) gone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.over
}

func (i *input) Close() error { return i.File.Close() }

// output is standard output, which stays open for a last word. If nobody reads it any more, the client has ended.
type output struct {
	File  io.Writer
	ended func()
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if err != nil {
		o.ended()
	}
	return n, err
}

func (*output) Close() error { return nil }

// serveHTTP serves clients at the path /mcp.
func (s *server) serveHTTP(ctx context.Context) error {
	auth, err := s.config.Auth.Authenticator()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.config.Listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	if s.config.Token != "" {
		program.Complain(s.sys.Stderr, "clients need the token in the file "+s.config.Token)
	}
	address := listener.Addr().(*net.TCPAddr)
	if !address.IP.IsLoopback() {
		program.Complain(s.sys.Stderr, "clients send their token and all their traffic unencrypted: listen on a loopback address, behind a proxy that speaks TLS")
	}
	tools := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: maxMessage, PropagateRequestCancellation: true, Logger: s.config.Target.Logger(s.sys),
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); origin != "" {
			if !slices.Contains(s.config.Origins, origin) {
				http.Error(w, "web pages of this origin may not use this server (--origin)", http.StatusForbidden)
				return
			}
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Vary", "Origin")
			if r.Method == http.MethodOptions { // a browser asks before it sends the token
				w.Header().Set("Access-Control-Allow-Methods", http.MethodPost)
				w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		if err := auth.Authorize(r.Header); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		tools.ServeHTTP(w, r)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, IdleTimeout: idleTime, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
	}
	if _, err := fmt.Fprintf(s.sys.Stdout, "http://%s/mcp\n", address); err != nil {
		return fmt.Errorf("printing the URL: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		s.cancel()
		_ = server.Close() // the error of Serve says why it ends
	})()
	return server.Serve(netutil.LimitListener(listener, maxConnections))
}
