package mcpserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// web is an HTTP server that misbehaves as its mode says.
type web struct {
	*httptest.Server
	mode     string
	starts   atomic.Int32
	deleted  atomic.Int32
	followed atomic.Int32
	answers  atomic.Int32  // to questions of it
	calling  chan struct{} // has one for each call that has begun
	release  chan struct{} // closed to answer them in mode waiting
	tools    atomic.Int32  // how many it has beside the first one
	events   chan string   // what it sends in mode events
	heard    chan string   // gets when somebody begins to listen there, and stops

	mu      sync.Mutex
	headers http.Header // of the last request
}

func newWeb(t testing.TB, mode string) *web {
	w := &web{mode: mode, calling: make(chan struct{}, 16), release: make(chan struct{}), events: make(chan string), heard: make(chan string, 16)}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.headers = r.Header.Clone()
	s.mu.Unlock()
	switch {
	case r.URL.Path == "/elsewhere":
		s.followed.Add(1)
		return
	case r.Method == http.MethodDelete:
		s.deleted.Add(1)
		return
	case r.Method == http.MethodGet && s.mode == "events":
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.(http.Flusher).Flush()
		s.heard <- "begin of " + r.Header.Get("Mcp-Session-Id")
		for {
			select {
			case e := <-s.events:
				fmt.Fprint(w, e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				s.heard <- "end"
				return
			}
		}
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	text, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(text, &m)
	if m.Method == "initialize" {
		s.starts.Add(1)
	}
	switch s.mode {
	case "redirect":
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		return
	case "silent":
		<-r.Context().Done()
		return
	case "unauthorized":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "page":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>")
		return
	case "large":
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			fmt.Fprint(w, strings.Repeat(" ", 1<<16))
		}
		return
	case "event":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: ")
		for r.Context().Err() == nil {
			fmt.Fprint(w, strings.Repeat(" ", 1<<16))
		}
		return
	}
	if m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.Method == "" {
		s.answers.Add(1)
		if s.mode == "events" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		<-r.Context().Done() // it takes its time
		return
	}
	var result string
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "session-1")
		result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"web","version":"1"}}`
	case "tools/list":
		if s.mode == "questions" {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := 0; r.Context().Err() == nil; i++ {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"ping\"}\n\n", i)
			}
			return
		}
		result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
		for n := range s.tools.Load() {
			result = strings.Replace(result, "]", fmt.Sprintf(`,{"name":"t%d","inputSchema":{"type":"object"}}]`, n), 1)
		}
		if s.mode == "values" {
			result = `{"tools":[` + strings.Repeat("{},", 600_000) + `{}]}`
		}
	case "tools/call":
		s.calling <- struct{}{}
		switch s.mode {
		case "forgetful":
			w.WriteHeader(http.StatusNotFound)
			return
		case "waiting":
			select {
			case <-s.release:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": first\n\n")
		if s.mode == "notifications" {
			for r.Context().Err() == nil {
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":%q}}\n\n", strings.Repeat("x", 1<<16))
			}
			return
		}
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"hello\"}]}}\n\n", m.ID)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (s *web) start(t testing.TB, stage *stage, cfg mcpserver.Config) *mcpserver.Server {
	t.Helper()
	cfg.Client = stage.client
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = rig.Patience
	}
	server := mcpserver.Start(cfg, mcpserver.Spec{
		Name: "web", URL: s.URL + "/mcp", Headers: []protocol.HTTPHeader{{Name: "authorization", Value: "Bearer ", ValueEnvVar: new("PATH")}},
	})
	t.Cleanup(server.Close)
	return server
}

// TestHTTP: requests go through the executor, with a header that it fills in; a connection to it
// that is cut between calls changes nothing.
func TestHTTP(t *testing.T) {
	t.Parallel()
	s, w := newStage(t), newWeb(t, "good")
	var told statuses
	server := w.start(t, s, mcpserver.Config{Notify: told.add})
	for range 3 {
		wantSay(t, server, "hello")
		s.cut()
		// What reads is asked again; a request is not, so it must not be sent too early.
		rig.Must(t, rig.Err(s.client.FS(nil).Stat(rig.Context(t), "/")))
	}
	rig.Is(t, len(server.Tools()), 1, "tools")
	rig.Is(t, w.starts.Load(), 1, "starts")
	w.mu.Lock()
	bearer := w.headers.Get("Authorization")
	w.mu.Unlock()
	rig.Is(t, strings.HasPrefix(bearer, "Bearer /"), true, "the credential is %q", bearer)
	server.Close()
	rig.Is(t, told.states(), "starting ready", "the states")
	rig.Is(t, w.deleted.Load(), 1, "times the session was ended")
}

// TestHTTPCut: a call whose connection is cut fails, and the next one does not.
func TestHTTPCut(t *testing.T) {
	t.Parallel()
	s, w := newStage(t), newWeb(t, "waiting")
	server := w.start(t, s, mcpserver.Config{})
	called := make(chan error)
	go func() {
		_, err := server.Call(rig.Context(t), "echo", nil)
		called <- err
	}()
	<-w.calling
	s.cut()
	rig.Is(t, <-called != nil, true, "the call fails")
	close(w.release)
	wantSay(t, server, "hello")
}

// TestHostileHTTP: whatever an HTTP server does wrong, its status says so.
func TestHostileHTTP(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"redirect":     "Temporary Redirect",
		"silent":       "no answer within 50ms",
		"unauthorized": "Unauthorized",
		"page":         "unsupported content type",
		"large":        "an answer of the server is too large",
		"event":        "",
		"values":       "a message of the server has more than 524288 values",
		"questions":    "",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, w := newStage(t), newWeb(t, mode)
			cfg := mcpserver.Config{}
			if mode == "silent" {
				cfg.StartTimeout = 50 * time.Millisecond
			}
			server := w.start(t, s, cfg)
			err := server.Wait(rig.Context(t))
			rig.Is(t, err != nil && strings.Contains(err.Error(), want), true, "the error is %v", err)
			rig.Is(t, w.followed.Load(), 0, "redirects that were followed")
			rig.Is(t, w.answers.Load() <= 64, true, "%d answers are under way at once", w.answers.Load())
			server.Close()
			// The executor reads what comes until its own bound; the end of the session spares
			// the test the wait.
			_ = s.client.Close()
		})
	}
}

// TestHTTPCalls: what calls of a hostile server end with.
func TestHTTPCalls(t *testing.T) {
	t.Parallel()
	for mode, ok := range map[string]func(*mcpserver.Server, error) bool{
		"forgetful":     func(s *mcpserver.Server, err error) bool { return err != nil && s.Status().State == mcpserver.Failed },
		"notifications": func(_ *mcpserver.Server, err error) bool { return err != nil },
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, w := newStage(t), newWeb(t, mode)
			failed := make(chan struct{}, 1)
			server := w.start(t, s, mcpserver.Config{Notify: func(st mcpserver.Status) {
				if st.State == mcpserver.Failed {
					failed <- struct{}{}
				}
			}})
			_, err := server.Call(rig.Context(t), "echo", nil)
			if mode == "forgetful" {
				<-failed
			}
			rig.Is(t, ok(server, err), true, "the error is %v, the status %+v", err, server.Status())
			rig.Is(t, errors.Is(err, mcpserver.ErrClosed), false, "the server was closed")
			server.Close()
			_ = s.client.Close()
		})
	}
}

// TestHTTPEvents: a server says beside its answers that its tools have changed, and asks; what it
// may have said while the connection to the executor was cut counts as said. Nothing of it is left.
func TestHTTPEvents(t *testing.T) {
	t.Parallel()
	s, w := newStage(t), newWeb(t, "events")
	var told statuses
	server := w.start(t, s, mcpserver.Config{Notify: told.add})
	listening := func(want string) {
		t.Helper()
		rig.Is(t, <-w.heard, want, "the server hears")
	}
	wantTools := func(want int) {
		t.Helper()
		rig.Until(t, fmt.Sprintf("there are %d tools", want), func() bool { return len(server.Tools()) == want })
	}
	listening("begin of session-1")
	rig.Must(t, server.Wait(rig.Context(t)))
	wantTools(1)
	w.tools.Store(1)
	w.events <- ": hello\r\nid: 1\r\ndata: {\"jsonrpc\":\"2.0\",\r\ndata: \"method\":\"notifications/tools/list_changed\"}\r\n\r\n"
	wantTools(2)
	w.events <- `data: {"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n\n"
	rig.Until(t, "the server is answered", func() bool { return w.answers.Load() > 0 })

	w.tools.Store(2)
	s.cut()
	heard := []string{<-w.heard, <-w.heard} // of two requests, in any order
	slices.Sort(heard)
	rig.Same(t, "what the server hears", []string{"begin of session-1", "end"}, heard)
	wantTools(3)
	wantSay(t, server, "hello")
	server.Close()
	rig.Is(t, told.states(), "starting ready", "the states")
	rig.Is(t, w.deleted.Load(), 1, "ends")
	rig.Is(t, w.starts.Load(), 1, "starts")
	_ = s.client.Close() // the executor listens for as long as it was told to
	listening("end")
}
