package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("X-Sent"))
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	eachTransport(t, func(t *testing.T, c *client.Client) {
		r, err := c.HTTP(t.Context(), protocol.HTTPRequestParams{
			Method: "POST", URL: server.URL + "/echo", BodyBase64: []byte("body"),
			Headers: []protocol.HTTPHeader{{Name: "x-sent", Value: "sent"}},
		})
		rig.Must(t, err)
		body, err := io.ReadAll(r.Body)
		if r.Status != http.StatusTeapot || string(body) != "body" || err != nil || r.Body.Close() != nil {
			t.Errorf("got %d, %q, %v", r.Status, body, err)
		}
		seen := ""
		for _, h := range r.Headers {
			if h.Name == "x-seen" {
				seen = h.Value
			}
		}
		rig.Is(t, seen, "sent", "the header, of %v", r.Headers)

		r, err = c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: server.URL + "/large"})
		rig.Must(t, err)
		body, err = io.ReadAll(r.Body)
		rig.Is(t, err == nil && bytes.Equal(body, large), true, "got %d bytes, %v, want %d", len(body), err, len(large))
		rig.Must(t, r.Body.Close())

		rig.Is(t, rig.Err(c.HTTP(t.Context(), protocol.HTTPRequestParams{Method: "GET", URL: "ftp://127.0.0.1/"})) != nil, true, "ftp fails")
	})
}

func TestHTTPEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	eachTransport(t, func(t *testing.T, c *client.Client) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		r := rig.Value(c.HTTP(ctx, protocol.HTTPRequestParams{Method: "GET", URL: server.URL}))
		first := make([]byte, 5)
		rig.Check(t, rig.Err(io.ReadFull(r.Body, first)))
		rig.Is(t, string(first), "first", "read")
		cancel(cause)
		rig.Is(t, rig.Err(r.Body.Read(first)), cause, "then")
		rig.Must(t, r.Body.Close())
		rig.Is(t, rig.Err(r.Body.Read(first)) != nil, true, "a closed body is not read")
	})
}
