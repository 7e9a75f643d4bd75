package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startLink runs a link until the test ends, and then checks what Run returned.
func startLink(t *testing.T, s *service, timing timing) *Link {
	t.Helper()
	id := rig.Value(noise.NewIdentity())
	l := NewLink(LinkConfig{Registry: s.client(), Identity: id, Logger: s.log.logger(), timing: timing})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			rig.Check(t, err)
		case <-time.After(patience):
			t.Error("Run did not return")
		}
		rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "Accept after Run")
		s.log.checkSecrets(t)
	})
	return l
}

// TestLinkUpgrade has the rows of remote.md 3.5 for an upgrade that is refused.
func TestLinkUpgrade(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		anew   bool
	}{
		{400, true}, {401, true}, {403, true}, {404, true}, {409, true}, {410, true}, {429, true},
		{200, false}, {302, false}, {500, false}, {503, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.upgrade = func(_ string, n int, w http.ResponseWriter) bool {
				if n < 2 {
					w.Header().Set(wire.HeaderRejectionReason, "expired")
					w.WriteHeader(tt.status)
				}
				return n < 2
			}
			l := startLink(t, s, timing{least: time.Millisecond, most: 2 * time.Millisecond})
			s.next()
			want := 1
			if tt.anew {
				want = 3
			}
			rig.Is(t, fmt.Sprint(s.counts()), fmt.Sprint(want, 3), "registrations and upgrades")
			rig.Until(t, "ready", l.Ready)
			rig.Is(t, strings.Contains(s.log.String(), "expired"), true, "the log names the reason:\n%s", s.log)
		})
	}
}

// TestLinkURL has the rows of remote.md 3.5 for a URL that leads nowhere: the
// same one is tried for ever.
func TestLinkURL(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.44.0.4:0") // where nobody else listens
	rig.Must(t, err)
	closed.Close()
	tests := []struct{ name, url string }{
		{"empty", ""},
		{"http", "http://127.0.0.1/?sig=" + testSignature},
		{"unparsable", "ws://127.0.0.1:x/%zz?sig=" + testSignature},
		{"refused", "ws://" + closed.Addr().String() + "/?sig=" + testSignature},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.url = func(string, int) string { return tt.url }
			l := startLink(t, s, timing{least: time.Millisecond, most: 2 * time.Millisecond})
			rig.Until(t, "three attempts", func() bool {
				return strings.Count(s.log.String(), "rendezvous not made") >= 3
			})
			if registers, _ := s.counts(); registers != 1 {
				t.Errorf("got %d registrations, want 1", registers)
			}
			rig.Is(t, l.Ready(), false, "ready without a websocket")
		})
	}
}

// TestLinkLoss has the rows of remote.md 3.5 for a websocket that ends.
func TestLinkLoss(t *testing.T) {
	t.Parallel()
	tests := map[string]func(p *peer){
		"tcp":      func(p *peer) { p.ws.Close() },
		"oversize": func(p *peer) { p.write(make([]byte, 262145)) },
		"garbage":  func(p *peer) { _, _ = p.ws.NetConn().Write([]byte("garbage, not a frame")) },
	}
	for _, code := range []int{1000, 1001, 1008, 1011, 1012, 4000, 4001, 4009, 4401} {
		tests[fmt.Sprint(code)] = func(p *peer) {
			message := websocket.FormatCloseMessage(code, "secret reason")
			_ = p.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(patience))
		}
	}
	for name, cut := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			// The first attempt is immediate; a second one would never come.
			l := startLink(t, s, timing{least: time.Hour, urgent: time.Hour, most: time.Hour})
			x := newScript(t, s, l)
			_, c := x.open("stream")
			cut(x.p)
			x.p.ends()
			// The peer has not shown that it acknowledges.
			wantEnd(t, c, nil)
			x.p = s.next()
			x.quiet()
			x.open("stream")
			rig.Is(t, fmt.Sprint(s.counts()), "1 2", "registrations and upgrades")
			if log := s.log.String(); strings.Contains(log, "secret reason") || !strings.Contains(log, "delay=0s") {
				t.Errorf("log of the loss:\n%s", log)
			}
		})
	}
}

func TestLinkSteadyStartsOver(t *testing.T) {
	t.Parallel()
	s := newService(t)
	startLink(t, s, timing{steady: time.Nanosecond, least: time.Hour, urgent: time.Hour, most: time.Hour})
	for range 5 {
		s.next().ws.Close()
	}
	s.next()
}

// TestLinkFlaps: however often the websocket has dropped, the next one comes soon.
// Attempts that get no websocket at all come further and further apart.
func TestLinkFlaps(t *testing.T) {
	t.Parallel()
	pace := timing{least: time.Millisecond, urgent: 4 * time.Millisecond, most: time.Hour}
	s := newService(t)
	startLink(t, s, pace)
	for range 40 {
		s.next().ws.Close()
	}
	s.next()
	for _, d := range s.log.delays(t) {
		rig.Is(t, max(d, pace.urgent), pace.urgent, "a delay, at most")
	}

	s = newService(t)
	s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	pace.most = time.Second
	startLink(t, s, pace)
	rig.Until(t, "a longer delay", func() bool { return slices.Max(append(s.log.delays(t), 0)) > pace.urgent })
}

func TestLinkRequestIDs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	startLink(t, s, timing{least: time.Millisecond, most: time.Millisecond})
	seen := map[string]bool{}
	for range 3 {
		p := s.next()
		id := p.header.Get(wire.HeaderRequestID)
		if !regexp.MustCompile(`^req_[0-9a-f]{32}$`).MatchString(id) || seen[id] {
			t.Errorf("request id %q, seen %v", id, seen)
		}
		seen[id] = true
		for name := range p.header {
			switch name {
			case "Connection", "Upgrade", "Sec-Websocket-Version", "Sec-Websocket-Key", wire.HeaderRequestID:
			default:
				t.Errorf("header %s is sent", name)
			}
		}
		p.ws.Close()
	}
}

// TestLinkRegistration has the rows of remote.md 3.4 that end the process, at
// the first registration and at a later one.
func TestLinkRegistration(t *testing.T) {
	t.Parallel()
	for _, status := range []int{302, 401, 403, 404, 409, 429, 500, 502, 503} {
		for _, later := range []int{0, 1} {
			t.Run(fmt.Sprintf("%d at %d", status, later), func(t *testing.T) {
				t.Parallel()
				s := newService(t)
				s.register = func(n int, w http.ResponseWriter) bool {
					return n == later && errorAnswer(w, status, "some_code")
				}
				s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool {
					w.WriteHeader(http.StatusConflict)
					return true
				}
				id, err := noise.NewIdentity()
				rig.Must(t, err)
				l := NewLink(LinkConfig{Registry: s.client(), Identity: id, Logger: s.log.logger()})
				err = l.Run(t.Context())
				if refused, ok := errors.AsType[*RegistryError](err); !ok || refused.Status != status {
					t.Errorf("Run: got %v, want the status %d", err, status)
				}
				if registers, _ := s.counts(); registers != later+1 {
					t.Errorf("got %d registrations, want %d", registers, later+1)
				}
				rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "Accept")
				s.log.checkSecrets(t)
			})
		}
	}
}

func TestLinkEnd(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := rig.Value(noise.NewIdentity())
	l := NewLink(LinkConfig{Registry: s.client(), Identity: id})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	x := newScript(t, s, l)
	keys, c := x.open("stream")
	if l.Addr() != nil || !l.Ready() {
		t.Errorf("Addr %v, Ready %v; want nil, true", l.Addr(), l.Ready())
	}
	rig.Must(t, c.Write([]byte(`"last words"`)))
	cancel()
	f := x.p.read()
	if text, err := keys.Open(f.GetData().GetPayload()); err != nil || string(text[4:]) != `"last words"` {
		t.Errorf("record: got %q, %v", text, err)
	}
	x.p.ends()
	rig.Check(t, <-done)
	wantEnd(t, c, nil)
	rig.Is(t, c.Write([]byte(`1`)) == nil, false, "Write succeeds after Run")
	rig.Is(t, l.Ready(), false, "ready after Run")
}

// TestLinkEndsBusy pins that a peer that does not read cannot hold up the end.
func TestLinkEndsBusy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := rig.Value(noise.NewIdentity())
	l := NewLink(LinkConfig{Registry: s.client(), Identity: id, timing: timing{farewell: 50 * time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	x := newScript(t, s, l)
	_, c := x.open("stream")
	written := make(chan error, 1)
	go func() {
		for {
			if err := c.Write(make([]byte, 1<<20)); err != nil {
				written <- err
				return
			}
		}
	}()
	x.begin("pending", testAuthority)
	cancel()
	for _, c := range []<-chan error{done, written} {
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatal("something still runs")
		}
	}
}

func TestLinkClose(t *testing.T) {
	t.Parallel()
	s := newService(t)
	x := newScript(t, s, startLink(t, s, timing{}))
	keys, c := x.open("stream")
	x.answered("unaccepted", x.begin("unaccepted", testAuthority))
	x.l.Close()
	x.wantReset("unaccepted")
	rig.Is(t, rig.Err(x.l.Accept()), net.ErrClosed, "Accept")
	x.say(keys, "stream", 0, `"goes on"`)
	wantMessage(t, c, `"goes on"`)
	x.answered("new", x.begin("new", testAuthority))
	x.wantReset("new")
}

// TestLinkRenews: a link whose URL says when it expires registers again long before, while
// its websocket is up, also after a renewal that has failed. Its next websocket has the
// newest URL, and needs no registry.
func TestLinkRenews(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const life = 8 * time.Second
	s.url = func(role string, n int) string {
		return fmt.Sprintf("ws%s/rendezvous?role=%s&n=%d&sig=%s&expiry=%d",
			strings.TrimPrefix(s.relay.URL, "http"), role, n, testSignature, time.Now().Add(life).Unix())
	}
	s.register = func(n int, w http.ResponseWriter) bool {
		switch n {
		case 0, 2:
			return false
		case 1:
			http.Error(w, "not now", http.StatusBadGateway)
		default:
			http.Error(w, "never again", http.StatusInternalServerError)
		}
		return true
	}
	startLink(t, s, timing{least: time.Millisecond, most: 2 * time.Millisecond})
	first := s.next()
	rig.Until(t, "the renewal", func() bool {
		registers, _ := s.counts()
		return registers >= 3
	})
	rig.Until(t, "the answer to it", func() bool { return strings.Contains(s.log.String(), "registration renewed") })
	first.ws.Close()
	rig.Is(t, s.next().query.Get("n"), "2", "the next websocket has the URL of registration")
	if _, upgrades := s.counts(); upgrades != 2 {
		t.Errorf("it took %d attempts", upgrades)
	}
}

// TestRegistrationLife: only a URL that says when it expires is renewed.
func TestRegistrationLife(t *testing.T) {
	t.Parallel()
	for expiry, want := range map[string]bool{
		"": false, "?expiry=": false, "?expiry=x": false, "?expiry=1": false, "?expiry=99999999999999": false,
		fmt.Sprint("?expiry=", time.Now().Add(time.Hour).Unix()):                         true,
		fmt.Sprint("?role=x&expiry=", time.Now().Add(24*time.Hour).Unix(), "&version=1"): true,
		fmt.Sprint("?expires=", time.Now().Add(time.Hour).Unix()):                        false,
	} {
		r := registration{URL: "wss://host/rendezvous" + expiry}
		if life, ok := r.life(); ok != want || ok && (life < 50*time.Minute || life > 24*time.Hour) {
			t.Errorf("%q lives for %v, %v", expiry, life, ok)
		}
	}
}

// TestLinkUnwelcome: while the registry refuses the executor's credential the link is not ready,
// though its websocket is up, and says why. It registers again and again until it is taken.
func TestLinkUnwelcome(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.url = func(role string, n int) string {
		return fmt.Sprintf("ws%s/rendezvous?role=%s&n=%d&sig=%s&expiry=%d",
			strings.TrimPrefix(s.relay.URL, "http"), role, n, testSignature, time.Now().Add(24*time.Hour).Unix())
	}
	s.validate = func(n int, _ *wire.ValidateRequest, w http.ResponseWriter) bool {
		if n == 0 {
			http.Error(w, "no", http.StatusUnauthorized)
		}
		return n == 0
	}
	var l *Link
	reasons := make(chan string, 2)
	s.register = func(n int, w http.ResponseWriter) bool {
		if n == 0 || n > 2 {
			return false
		}
		reasons <- l.Unready()
		http.Error(w, "no", map[int]int{1: http.StatusForbidden, 2: http.StatusBadGateway}[n])
		return true
	}
	l = startLink(t, s, timing{})
	x := newScript(t, s, l)
	rig.Until(t, "the websocket", func() bool { return l.Unready() == "" })
	x.begin("refused", testAuthority)
	x.wantReset("refused")
	for _, status := range []string{"401", "403"} {
		select {
		case reason := <-reasons:
			if !strings.Contains(reason, "refuses the credential of this executor (status "+status+")") || !l.Ready() {
				t.Errorf("it is not ready because %q; its websocket is up: %v", reason, l.Ready())
			}
		case <-time.After(patience):
			t.Fatal("it does not register again")
		}
	}
	rig.Until(t, "the credential is taken", func() bool { return l.Unready() == "" })
	x.answered("welcome", x.begin("welcome", testAuthority))
	rig.Is(t, fmt.Sprint(s.counts()), "4 1", "registrations and websockets")
}
