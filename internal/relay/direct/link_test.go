package direct

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/sigv4"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute // until a test gives up; nothing takes as long
	good     = `{"environment_id":"env-1","transport":"direct_jsonrpc_v1","registration_id":"reg-1","url":"URL","more":[1]}`
	several  = `{"environment_id":"env-1","transport":"direct_jsonrpc_v1","registration_id":"reg-1","url":"URL","websockets":2}`
)

// event is a request that a fake registry has got.
type event struct {
	request *http.Request
	body    string
	conn    net.Conn // of an upgrade that was answered with 101
}

func (e event) String() string {
	if e.request.Method == http.MethodGet {
		return "GET " + e.request.URL.RequestURI()
	}
	return "POST " + e.request.URL.Path + " " + e.body
}

// fake is a registry with its rendezvous. It answers registrations with answer, and upgrades with
// the next of statuses, the last one again and again.
type fake struct {
	*httptest.Server

	answer   string
	statuses []int
	events   chan event
}

func newFake(t *testing.T, answer string, statuses ...int) *fake {
	t.Helper()
	f := &fake{answer: answer, statuses: statuses, events: make(chan event, 64)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(t, w, r) }))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) serve(t *testing.T, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	rig.Check(t, err)
	e := event{request: r, body: string(body)}
	if r.Method == http.MethodPost {
		f.events <- e
		if status, text, ok := strings.Cut(f.answer, " "); ok && len(status) == 3 {
			if status[0] == '3' {
				w.Header().Set("Location", text)
				text = ""
			}
			code := 0
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
			fmt.Fprint(w, text)
			return
		}
		fmt.Fprint(w, strings.ReplaceAll(f.answer, "URL", strings.Replace(f.URL, "http", "ws", 1)+"/connect?token=a%20b&z=1&a=2"))
		return
	}
	status := f.statuses[0]
	if len(f.statuses) > 1 {
		f.statuses = f.statuses[1:]
	}
	if status != http.StatusSwitchingProtocols {
		f.events <- e
		if status/100 == 3 {
			w.Header().Set("Location", f.URL+"/elsewhere")
		}
		w.WriteHeader(status)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	rig.Must(t, err)
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	t.Cleanup(func() { conn.Close() })
	e.conn = conn
	f.events <- e
}

func (f *fake) next(t *testing.T) event {
	t.Helper()
	return rig.Within(t, patience, "another request", f.events)
}

// text sends a message of one frame.
func (e event) text(t *testing.T, message string) {
	t.Helper()
	rig.Must(t, rig.Err(e.conn.Write(append([]byte{0x81, byte(len(message))}, message...))))
}

// ended waits until the link has closed the connection.
func (e event) ended(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, bufio.NewReader(e.conn)); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
}

func signing(t *testing.T) auth.RequestSigner {
	t.Helper()
	s, err := sigv4.Open(t.Context(), sigv4.Config{Region: "eu-west-1", Lookup: func(name string) (string, bool) {
		return map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "session"}[name], true
	}})
	rig.Must(t, err)
	return s
}

// start runs a link whose connections are read to their ends.
func start(t *testing.T, f *fake, tokens auth.TokenSource, patient bool) (l *Link, ended <-chan error, stop context.CancelFunc) {
	t.Helper()
	r := rig.Value(relay.NewRegistry(relay.RegistryConfig{BaseURL: f.URL + "/base", EnvironmentID: "env-1", Tokens: tokens}))
	l = NewLink(LinkConfig{Registry: r, Patient: patient})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		defer r.Close()
		done <- l.Run(ctx)
	}()
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for rig.Err(c.Read()) == nil {
				}
			}()
		}
	}()
	t.Cleanup(func() {
		stop()
		<-accepted
	})
	return l, done, stop
}

func result(t *testing.T, ended <-chan error) error {
	t.Helper()
	return rig.Within(t, patience, "the end of Run", ended)
}

const (
	post = `POST /base/cloud/environment/env-1/direct/register {"transport":"direct_jsonrpc_v1"}`
	get  = "GET /connect?token=a%20b&z=1&a=2"
)

// TestRequests: what is sent is what the reference sends, and signed so that it can be verified.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFake(t, good, 101)
	_, ended, stop := start(t, f, signing(t), false)
	for _, want := range []struct {
		text    string
		headers []string
	}{
		{post, []string{"Accept", "Authorization", "Content-Length", "Content-Type", "X-Amz-Date", "X-Amz-Security-Token"}},
		{get, []string{"Authorization", "Connection", "Sec-Websocket-Key", "Sec-Websocket-Version", "Upgrade", "X-Amz-Date", "X-Amz-Security-Token"}},
	} {
		e := f.next(t)
		rig.Is(t, e.String(), want.text, "the next request")
		var names []string
		for name := range e.request.Header {
			names = append(names, name)
		}
		slices.Sort(names)
		rig.Same(t, fmt.Sprintf("%s has the headers", e), want.headers, names)
		verify(t, e)
	}
	stop()
	rig.Must(t, result(t, ended))
}

func verify(t *testing.T, e event) {
	t.Helper()
	claim, err := sigv4.ParseClaim(e.request.Header.Get("Authorization"))
	if err == nil {
		err = claim.Verify(t.Context(), e.request, []byte(e.body), "secret", time.Now())
	}
	rig.Is(t, err, nil, "%s", e)
}

// says checks the text of an error, which tells no secret.
func says(t *testing.T, err error, text string) {
	t.Helper()
	rig.Is(t, err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "SECRET"), false,
		"got %v, want %s", err, text)
}

func TestRegistrationIsRefused(t *testing.T) {
	t.Parallel()
	replaced := func(old, text string) string { return strings.Replace(good, old, text, 1) }
	for name, tt := range map[string]struct{ answer, says string }{
		"another environment":     {replaced("env-1", "env-2"), "another environment"},
		"no environment":          {replaced("environment_id", "x"), "another environment"},
		"another transport":       {replaced("direct_jsonrpc_v1", "noise"), "transport"},
		"no transport":            {replaced(`"transport":"direct_jsonrpc_v1",`, ""), "transport"},
		"blank registration":      {replaced("reg-1", " "), "registration_id"},
		"long registration":       {replaced("reg-1", strings.Repeat("x", maxID+1)), "registration_id"},
		"no URL":                  {replaced("url", "x"), "url of the registry's answer is blank"},
		"blank URL":               {replaced("URL", " "), "is blank"},
		"http":                    {replaced("URL", "http://127.0.0.1/"), "neither wss nor ws"},
		"ws to another host":      {replaced("URL", "ws://example.com/SECRET"), "neither wss nor ws"},
		"ws to what looks local":  {replaced("URL", "ws://localhost.example.com/SECRET"), "neither wss nor ws"},
		"a password":              {replaced("URL", "wss://a:SECRET@example.com/"), "not of the form"},
		"no host":                 {replaced("URL", "wss:///SECRET"), "not of the form"},
		"no URL at all":           {replaced("URL", "://SECRET"), "not of the form"},
		"a number for a text":     {replaced(`"reg-1"`, "1"), "JSON"},
		"not JSON":                {"{SECRET", "JSON"},
		"a redirect":              {"302 http://127.0.0.1:1/", "answered 302"},
		"a conflict":              {"409 x", "answered 409"},
		"a failure":               {"500 x", "answered 500"},
		"no right":                {"403 x", "answered 403"},
		"another executor":        {`503 {"error":{"code":"registration_conflict"}}`, "answered 503 registration_conflict"},
		"credentials not checked": {`502 {"error":{"code":"authentication_service_unavailable"}}`, "answered 502"},
		"endless":                 {"200 " + strings.Repeat(" ", 1<<20+1), "longer than"},
	} {
		f := newFake(t, tt.answer, 101)
		_, ended, _ := start(t, f, signing(t), false)
		says(t, result(t, ended), tt.says)
		rig.Is(t, f.next(t).String(), post, "%s: the request", name)
		rig.Is(t, len(f.events), 0, "%s: more requests", name)
	}
}

// TestPatient: with a key of ours a conflict is waited out.
func TestPatient(t *testing.T) {
	t.Parallel()
	f := newFake(t, `503 {"error":{"code":"registration_conflict"}}`, 101)
	_, ended, stop := start(t, f, auth.Bearer("token"), true)
	for range 2 {
		e := f.next(t)
		rig.Is(t, e.request.Header.Get("Authorization")+" "+e.String(), "Bearer token "+post, "the next request")
	}
	stop()
	rig.Must(t, result(t, ended))
}

func TestUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 302, 408, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newFake(t, good, status, 101)
			_, ended, stop := start(t, f, signing(t), false)
			for _, want := range []string{post, get, get} {
				e := f.next(t)
				rig.Is(t, e.String(), want, "the next request")
				verify(t, e)
			}
			stop()
			rig.Must(t, result(t, ended))
		})
	}
	for _, status := range []int{400, 401, 403, 404, 410, 451} {
		_, ended, _ := start(t, newFake(t, good, status), signing(t), false)
		refused, _ := errors.AsType[*socket.RefusedError](result(t, ended))
		rig.Is(t, refused.Status, status, "the status")
	}
}

// TestConflict: after 409 the executor registers again. It tells of the registration that it had
// only where the registry has said that it takes several websockets.
func TestConflict(t *testing.T) {
	t.Parallel()
	for answer, again := range map[string]string{
		good:    post,
		several: strings.Replace(post, "}", `,"registration_id":"reg-1"}`, 1),
	} {
		f := newFake(t, answer, 409, 101)
		_, ended, stop := start(t, f, signing(t), false)
		for _, want := range []string{post, get, again, get} {
			rig.Is(t, f.next(t).String(), want, "the next request")
		}
		stop()
		rig.Must(t, result(t, ended))
	}
}

// TestOneWebsocket: there is one at a time, and the next after its end.
func TestOneWebsocket(t *testing.T) {
	t.Parallel()
	f := newFake(t, good, 101)
	l, ended, stop := start(t, f, signing(t), false)
	rig.Is(t, f.next(t).String(), post, "the next request")
	for range 3 {
		e := f.next(t)
		e.text(t, "{}")
		rig.Is(t, l.Open() <= 1, true, "websockets that are open: %v, at most %v", l.Open(), 1)
		e.conn.Close()
	}
	last := f.next(t)
	stop()
	rig.Must(t, result(t, ended))
	last.ended(t)
	rig.Is(t, l.Open(), 0, "websockets that are open")
	rig.Is(t, l.Opened() >= 3, true, "websockets that were open: %v, at least %v", l.Opened(), 3)
}

// TestSeveralWebsockets: where the registry takes two, the second is opened when a harness has
// come by the first, and the third when one of them has ended.
func TestSeveralWebsockets(t *testing.T) {
	t.Parallel()
	f := newFake(t, several, 101)
	_, ended, stop := start(t, f, signing(t), false)
	rig.Is(t, f.next(t).String(), post, "the next request")
	first := f.next(t)
	first.text(t, "{}")
	second := f.next(t)
	second.text(t, "{}")
	rig.Is(t, len(f.events), 0, "requests after the second")
	first.conn.Close()
	third := f.next(t)
	stop()
	rig.Must(t, result(t, ended))
	second.ended(t)
	third.ended(t)
}

// TestNobodyListens: a rendezvous that cannot be reached is tried again.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	nobody := rig.FreeAddress(t)
	f := newFake(t, strings.Replace(good, "URL", "ws://"+nobody+"/SECRET?SECRET", 1))
	l, ended, stop := start(t, f, signing(t), false)
	f.next(t)
	rig.Is(t, l.Unready() == "", false, "the link is ready")
	p := &endpoint{url: &url.URL{Scheme: "ws", Host: nobody, Path: "/SECRET", RawQuery: "SECRET"}}
	_, err := open(t.Context(), l.cfg.Registry, p, nil, nil)
	says(t, err, "")
	rig.Is(t, rig.Value(l.overcome(t.Context(), p, err)), p, "the endpoint after it")
	stop()
	rig.Must(t, result(t, ended))
}
