package registry

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// startFront serves s behind a front.
func startFront(t testing.TB, s *Server) (front *Front, address string) {
	t.Helper()
	l := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	front = NewFront(s, l, nil)
	served := make(chan error, 1)
	go func() { served <- front.Serve() }()
	t.Cleanup(func() {
		rig.Check(t, front.Close())
		rig.Check(t, rig.Within(t, soon, "an answer", served))
	})
	return front, l.Addr().String()
}

// visitor is a connection that the test speaks HTTP on.
type visitor struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func visit(t testing.TB, address string) *visitor {
	t.Helper()
	conn := rig.Value(net.Dial("tcp", address))
	t.Cleanup(func() { conn.Close() })
	rig.Must(t, conn.SetDeadline(time.Now().Add(soon)))
	return &visitor{t, conn, bufio.NewReader(conn)}
}

// ask sends a request and tells with which status it was answered, and whether the connection
// is over then.
func (v *visitor) ask(method, path, authorization string, body any) (answer string) {
	v.t.Helper()
	text := rig.Value(json.Marshal(body))
	rig.Value(fmt.Fprintf(v.conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, authorization, len(text), text))
	response := rig.Value(http.ReadResponse(v.r, &http.Request{Method: method}))
	rig.Value(io.Copy(io.Discard, response.Body))
	if response.Close {
		if _, err := v.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			v.t.Errorf("%s %s: %v after the answer, want the end of the connection", method, path, err)
		}
	}
	return fmt.Sprintf("%d, over %v", response.StatusCode, response.Close)
}

// TestStrangersLeave: a connection without a credential ends with the answer. One with a
// credential stays open, until a request without one comes on it.
func TestStrangersLeave(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	front, address := startFront(t, s.Server)
	executor, _ := createKey(t, s.store, ticket.Executor, "env", store.Limits{})
	const api = wire.PathPrefix
	register := registerBody(storetest.Key(t))
	for _, tt := range []struct {
		method, path, key string
		status            int
	}{
		{"POST", api + "env/register", "xa_wrong", 401},
		{"POST", api + "env/register", "", 401},
		{"POST", api + "other/register", executor, 403},
		{"POST", api + "env/connect", executor, 403},
		{"POST", api + "a.b/register", executor, 400},
		{"GET", api + "env/register", executor, 405},
		{"POST", api + "env/unknown", executor, 404},
		{"GET", "/unknown", "", 404},
		{"GET", ticket.RendezvousPath, "", 400},
		{"GET", pathHealth, "", 200},
		{"GET", pathReady, "", 200},
		{"HEAD", pathMetrics, "", 200},
		{"POST", pathMetrics, "", 405},
	} {
		answer := visit(t, address).ask(tt.method, tt.path, "Bearer "+tt.key, register)
		rig.Is(t, answer, fmt.Sprint(tt.status, ", over true"), "%s %s", tt.method, tt.path)
	}
	v := visit(t, address)
	rig.Is(t, v.ask("POST", api+"env/register", "Bearer "+executor, register), "200, over false", "register")
	rig.Is(t, v.ask("POST", api+"env/validate", "Bearer "+executor, register), "400, over false", "validate")
	rig.Is(t, v.ask("POST", api+"env/register", "Bearer "+executor, register), "200, over false", "register again")
	rig.Is(t, v.ask("POST", api+"env/register", "Bearer wrong", register), "401, over true", "a stranger on that connection")
	rig.Until(t, "nobody is left", func() bool { return front.lobby.Len() == 0 && front.taken() == 0 && s.kept() == 0 })
}

// TestAnsweredStrangersGo: when a request is answered before its body has come, the server
// does not wait for the rest of the body.
func TestAnsweredStrangersGo(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	_, address := startFront(t, s.Server)
	answered, silent := visit(t, address), visit(t, address)
	head := "POST " + wire.PathPrefix + "env/register HTTP/1.1\r\nHost: x\r\nContent-Length: 6000\r\n\r\nhalf of it"
	rig.Value(io.WriteString(answered.conn, head))
	response := rig.Value(http.ReadResponse(answered.r, nil))
	rig.Is(t, response.StatusCode, http.StatusUnauthorized, "the status")
	open := errors.Is(rig.Err(io.Copy(io.Discard, answered.r)), os.ErrDeadlineExceeded)
	rig.Is(t, open, false, "it is still open")
	// A connection that has sent nothing lives for headerTimeout, which is not over.
	// Reading would tell at once if it had ended. The deadline is a little in the
	// future, since with one in the past nothing would be read.
	rig.Must(t, silent.conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	rig.Is(t, rig.Err(silent.r.ReadByte()), os.ErrDeadlineExceeded, "who has said nothing since has ended before")
}

// taken returns how many connections the front knows of.
func (f *Front) taken() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seats)
}

// kept returns how many HTTP connections are counted for principals.
func (s *testServer) kept() int { return s.limits.Usage("").Kept }

// TestKeptConnections: HTTP connections that stay open count for the principal whose
// request was the last on them. Those of a proxy carry requests of many.
func TestKeptConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	front, address := startFront(t, s.Server)
	few, fewID := createKey(t, s.store, ticket.Executor, "env", store.Limits{Connections: 2})
	many, manyID := createKey(t, s.store, ticket.Executor, "env", store.Limits{})
	body := registerBody(storetest.Key(t))
	ask := func(v *visitor, key string, wantOver bool) {
		t.Helper()
		rig.Is(t, v.ask("POST", wire.PathPrefix+"env/register", "Bearer "+key, body), fmt.Sprint("200, over ", wantOver), "the answer")
	}
	count := func(id string) int { return s.limits.Usage(store.KeyPrefix + id).Kept }
	first, second := visit(t, address), visit(t, address)
	for range 3 {
		ask(first, few, false)
		ask(second, few, false)
		ask(visit(t, address), few, true) // beyond the limit the request is answered all the same
	}
	ask(second, many, false)
	rig.Is(t, fmt.Sprint(count(fewID), count(manyID)), "1 1", "connections that are counted")
	ask(visit(t, address), few, false)
	ask(second, few, true) // it counts for the other principal, and few may have no third one
	rig.Until(t, "it is given back", func() bool { return count(manyID) == 0 })
	first.conn.Close()
	rig.Until(t, "it is given back", func() bool { return count(fewID) == 1 })
	rig.Is(t, front.lobby.Len(), 0, "seats are taken in the lobby")
}

// TestSlowBody: a principal that has all connections that it may have cannot occupy places
// of strangers with requests whose bodies do not come.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	front, address := startFront(t, s.Server)
	key, _ := createKey(t, s.store, ticket.Executor, "env", store.Limits{Connections: 1})
	begin := func() <-chan int {
		v := visit(t, address)
		rig.Value(fmt.Fprintf(v.conn, "POST %senv/register HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 6000\r\n\r\n{", wire.PathPrefix, key))
		answered := make(chan int, 1)
		go func() {
			response, err := http.ReadResponse(v.r, nil)
			if err != nil {
				answered <- 0
				return
			}
			response.Body.Close()
			answered <- response.StatusCode
		}()
		return answered
	}
	kept := begin()
	rig.Until(t, "the first is known", func() bool { return s.kept() == 1 })
	select {
	case status := <-begin():
		rig.Is(t, status, http.StatusBadRequest, "the second")
	case <-kept:
		t.Error("the second waits for its body as long as the first")
	}
	rig.Until(t, "nobody is in the lobby", func() bool { return front.lobby.Len() == 0 })
}

// TestStrangersAreFew: the connections of thousands of strangers, in every state, are
// bounded, and keep out nobody with a key or a signed URL.
func TestStrangersAreFew(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	front, address := startFront(t, s.Server)
	executor, _ := createKey(t, s.store, ticket.Executor, "*", store.Limits{})
	_, link := s.mustRegister(t, executor, "signed", storetest.Key(t))
	signed := rig.Value(url.Parse(link))
	signed.Host = address
	strangers := maxStrangers + 1000
	if rig.Runs(rig.Merge) {
		strangers = 2 * maxStrangers
	}
	var limit syscall.Rlimit
	rig.Must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if strangers = min(strangers, int(limit.Cur)-3*maxStrangers); strangers < maxStrangers+1000 {
		t.Skipf("%d descriptors are too few", limit.Cur)
	}
	heads := []string{"", "GET / HTTP/1.1\r\n", "POST " + wire.PathPrefix + "env/connect HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer xa_" +
		strings.Repeat("x", 43) + "\r\nContent-Length: 6000\r\n\r\nhalf of it"}
	var wg sync.WaitGroup
	const crowds = 8
	var dialed atomic.Int32
	for range crowds {
		wg.Go(func() {
			for n := range strangers / crowds {
				conn, err := (&net.Dialer{Timeout: soon}).Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { conn.Close() })
				_, _ = io.WriteString(conn, heads[n%len(heads)]) // fails if it is closed by now
				dialed.Add(1)
			}
		})
	}
	most := 0
	body := registerBody(storetest.Key(t))
	for dialed.Load() < int32(strangers/crowds*crowds) && !t.Failed() {
		// The executor tries until it works, as real ones do: when strangers come
		// this fast its connection may be closed before its request has come.
		rig.Until(t, "an executor registers", func() bool {
			most = max(most, front.taken())
			return try(address, executor, body) == 200
		})
	}
	wg.Wait()
	rig.Until(t, "an executor connects", func() bool {
		most = max(most, front.taken())
		e, err := socket.Dial(t.Context(), signed.String(), nil, socket.Config{})
		if err == nil {
			e.Close()
		}
		return err == nil
	})
	// The front knows those in the lobby, and a few that have just left it.
	rig.Is(t, most <= maxStrangers+100, true, "connections at once: %v, at most %v", most, maxStrangers+100)
	t.Logf("%d connections at most", most)
}

// try registers an environment and returns the status, or 0 if the connection was lost.
func try(address, key string, body any) (status int) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	text, err := json.Marshal(body)
	if err != nil {
		return 0
	}
	_ = conn.SetDeadline(time.Now().Add(soon))
	if _, err := fmt.Fprintf(conn, "POST %sother/register HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", wire.PathPrefix, key, len(text), text); err != nil {
		return 0
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}
