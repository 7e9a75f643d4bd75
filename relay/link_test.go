package relay

import (
	"context"
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

// newLink returns a link of an executor with a key of its own.
func newLink(s *service, timing timing) *Link {
	return NewLink(LinkConfig{Registry: s.client(), Identity: rig.Value(noise.NewIdentity()), Logger: s.log.logger(), timing: timing})
}

// run runs a link until cancel is called.
func run(l *Link) (cancel func(), done <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	return cancel, ended
}

// startLink runs a link until the test ends, and then checks what Run returned.
func startLink(t *testing.T, s *service, timing timing) *Link {
	t.Helper()
	l := newLink(s, timing)
	cancel, done := run(l)
	t.Cleanup(func() {
		cancel()
		rig.Check(t, rig.Within(t, patience, "the end of Run", done))
		rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "Accept after Run")
		s.log.checkSecrets(t)
	})
	return l
}

// TestLinkUpgrade has the rows of remote.md 3.5 for an upgrade that is refused.
func TestLinkUpgrade(t *testing.T) {
	t.Parallel()
	for status, registrations := range map[int]int{
		400: 3, 401: 3, 403: 3, 404: 3, 409: 3, 410: 3, 429: 3,
		200: 1, 302: 1, 500: 1, 503: 1,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.upgrade = func(_ string, n int, w http.ResponseWriter) bool {
				w.Header().Set(wire.HeaderRejectionReason, "expired")
				return n < 2 && plainAnswer(w, status)
			}
			l := startLink(t, s, timing{least: time.Millisecond, most: 2 * time.Millisecond})
			s.next()
			rig.Is(t, fmt.Sprint(s.counts()), fmt.Sprint(registrations, 3), "registrations and upgrades")
			rig.Until(t, "ready", l.Ready)
			rig.Is(t, strings.Contains(s.log.String(), "expired"), true, "the log names the reason:\n%s", s.log)
		})
	}
}

// TestLinkURL has the rows of remote.md 3.5 for a URL that leads nowhere: the
// same one is tried for ever.
func TestLinkURL(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"empty":      "",
		"http":       "http://127.0.0.1/?sig=" + testSignature,
		"unparsable": "ws://127.0.0.1:x/%zz?sig=" + testSignature,
		"refused":    "ws://" + rig.FreeAddress(t) + "/?sig=" + testSignature,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.url = func(string, int) string { return url }
			l := startLink(t, s, timing{least: time.Millisecond, most: 2 * time.Millisecond})
			rig.Until(t, "three attempts", func() bool {
				return strings.Count(s.log.String(), "rendezvous not made") >= 3
			})
			rig.Is(t, s.registrations(), 1, "registrations")
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
			log := s.log.String()
			rig.Is(t, !strings.Contains(log, "secret reason") && strings.Contains(log, "delay=0s"), true, "log of the loss:\n%s", log)
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
		rig.Is(t, d <= pace.urgent, true, "a delay: %v, at most %v", d, pace.urgent)
	}

	s = newService(t)
	s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool {
		return plainAnswer(w, http.StatusServiceUnavailable)
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
		rig.Is(t, regexp.MustCompile(`^req_[0-9a-f]{32}$`).MatchString(id) && !seen[id], true, "request id %q, seen %v", id, seen)
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
				s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool { return plainAnswer(w, http.StatusConflict) }
				l := newLink(s, timing{})
				err := l.Run(t.Context())
				rig.Is(t, refusal(err), status, "status of %v", err)
				rig.Is(t, s.registrations(), later+1, "registrations")
				rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "Accept")
				s.log.checkSecrets(t)
			})
		}
	}
}

func TestLinkEnd(t *testing.T) {
	t.Parallel()
	s := newService(t)
	l := newLink(s, timing{})
	cancel, done := run(l)
	x := newScript(t, s, l)
	keys, c := x.open("stream")
	rig.Is(t, fmt.Sprint(l.Addr(), l.Ready()), "<nil> true", "address, readiness")
	rig.Must(t, c.Write([]byte(`"last words"`)))
	cancel()
	x.p.wantRecord(keys, `"last words"`)
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
	l := newLink(s, timing{farewell: 50 * time.Millisecond})
	cancel, done := run(l)
	x := newScript(t, s, l)
	_, c := x.open("stream")
	written := flood(c)
	x.begin("pending", testAuthority)
	cancel()
	rig.Within(t, patience, "the end of Run", done)
	rig.Within(t, patience, "the end of Write", written)
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

// expires makes URLs that say when they expire, and their number.
func (s *service) expires(life time.Duration) {
	s.url = func(role string, n int) string {
		return fmt.Sprintf("ws%s/rendezvous?role=%s&n=%d&sig=%s&expiry=%d",
			strings.TrimPrefix(s.relay.URL, "http"), role, n, testSignature, time.Now().Add(life).Unix())
	}
}

// TestLinkRenews: a link whose URL says when it expires registers again long before, while
// its websocket is up, also after a renewal that has failed. Its next websocket has the
// newest URL, and needs no registry.
func TestLinkRenews(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expires(8 * time.Second)
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
	rig.Until(t, "the renewal", func() bool { return s.registrations() >= 3 })
	rig.Until(t, "the answer to it", func() bool { return strings.Contains(s.log.String(), "registration renewed") })
	first.ws.Close()
	rig.Is(t, s.next().query.Get("n"), "2", "the next websocket has the URL of registration")
	_, upgrades := s.counts()
	rig.Is(t, upgrades, 2, "attempts")
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
		life, ok := r.life()
		rig.Is(t, ok && life >= 50*time.Minute && life <= 24*time.Hour, want, "%q lives for %v, %v", expiry, life, ok)
	}
}

// TestLinkUnwelcome: while the registry refuses the executor's credential the link is not ready,
// though its websocket is up, and says why. It registers again and again until it is taken.
func TestLinkUnwelcome(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.expires(24 * time.Hour)
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
		reason := rig.Within(t, patience, "another registration", reasons)
		refuses := strings.Contains(reason, "refuses the credential of this executor (status "+status+")")
		rig.Is(t, refuses && l.Ready(), true, "it is not ready because %q; its websocket is up: %v", reason, l.Ready())
	}
	rig.Until(t, "the credential is taken", func() bool { return l.Unready() == "" })
	x.answered("welcome", x.begin("welcome", testAuthority))
	rig.Is(t, fmt.Sprint(s.counts()), "4 1", "registrations and websockets")
}
