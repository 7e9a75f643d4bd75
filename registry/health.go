package registry

import (
	"net/http"
	"strings"

	"github.com/execagent/execagent/registry/store"
	"github.com/execagent/execagent/registry/ticket"
	"github.com/execagent/execagent/registry/wire"
)

// Paths for those who run a registry. None of them needs a credential, nor tells
// who uses it.
const (
	pathHealth  = "/healthz" // the process answers
	pathReady   = "/readyz"  // it should get requests: the store can be written, no drain
	pathMetrics = "/metrics"
)

// ServeHTTP answers requests to the API and to the rendezvous, and those about
// health.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seat, h := seatOf(r), w.Header()
	seat.attend()
	h.Set("Connection", "close") // until a credential was accepted
	defer func() {
		if h.Get("Connection") != "" {
			seat.dismiss(w)
		}
	}()
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, ticket.RendezvousPath):
		s.serveRendezvous(w, r)
	case strings.HasPrefix(path, wire.PathPrefix):
		s.serveAPI(w, r)
	case path == pathHealth || path == pathReady || path == pathMetrics:
		s.serveHealth(w, r)
	default:
		s.fail(w, "other", &apiError{status: http.StatusNotFound, code: codeNotFound, message: "no such path"})
	}
}

func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.fail(w, "other", &apiError{status: http.StatusMethodNotAllowed, code: codeMethod, message: "the method is not GET"})
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var text strings.Builder
	switch status := http.StatusOK; r.URL.Path {
	case pathMetrics:
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.metrics.write(&text)
		_, _ = w.Write([]byte(text.String())) // who has gone needs no answer
	case pathReady:
		message := "ready\n"
		if s.draining.Load() {
			status, message = http.StatusServiceUnavailable, "draining\n"
		} else if s.store.Ready(r.Context(), s.node) != nil { // which has logged why
			status, message = http.StatusServiceUnavailable, store.ErrUnavailable.Error()+"\n"
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(message))
	default:
		_, _ = w.Write([]byte("alive\n"))
	}
}
