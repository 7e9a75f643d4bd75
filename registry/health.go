package registry

import (
	"net/http"

	"github.com/execagent/execagent/internal/registry/store"
)

// Paths for operators. They need no credential, and reveal nothing about principals.
const (
	pathHealth  = "/healthz" // the process answers
	pathReady   = "/readyz"  // it should get requests: it is not draining, and can write the store
	pathMetrics = "/metrics"
)

// serveHealth answers the paths for operators.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.fail(w, "other", &apiError{status: http.StatusMethodNotAllowed, code: codeMethod, message: "the method is not GET"})
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch status := http.StatusOK; r.URL.Path {
	case pathMetrics:
		s.metrics.page.ServeHTTP(w, r)
	case pathReady:
		message := "ready\n"
		if s.rendezvous.Draining() {
			status, message = http.StatusServiceUnavailable, "draining\n"
		} else if s.store.Ready(r.Context(), s.node) != nil { // Ready has logged the error
			status, message = http.StatusServiceUnavailable, store.ErrUnavailable.Error()+"\n"
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(message)) // a client that has left needs no answer
	default:
		_, _ = w.Write([]byte("alive\n"))
	}
}
