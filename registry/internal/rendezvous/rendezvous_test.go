package rendezvous

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

func TestRejection(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		draining := c.server(settings{})
		rig.Must(c.t, draining.Drain(c.t.Context()))
		full := c.server(settings{Limits: store.Limits{Connections: 1}})
		full.executor()
		full.harness()

		change := func(change func(*ticket.Ticket)) string {
			k := s.ticket(ticket.Executor)
			change(&k)
			return s.url(k)
		}
		query := func(change func(url.Values)) string {
			u := rig.Value(url.Parse(s.url(s.ticket(ticket.Executor))))
			q := u.Query()
			change(q)
			u.RawQuery = q.Encode()
			return u.String()
		}
		other := c.register("other")
		narrow := c.principal(ticket.Executor, "prod-*")
		revoked := c.principal(ticket.Executor, "*")
		c.revoke(revoked)
		offline := s.ticket(ticket.Harness)
		offline.EnvironmentID, offline.RegistrationID = "other", other.ID

		for _, tt := range []struct {
			name   string
			url    string
			status int
			reason string
		}{
			{"expired", change(func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Second) }), 401, ticket.RejectExpired},
			{"no query", "ws://" + s.host + ticket.RendezvousPath, 400, ticket.RejectMissingRole},
			{"malformed query", s.url(s.ticket(ticket.Executor)) + "&%zz", 400, ticket.RejectMalformedQuery},
			{"semicolon", s.url(s.ticket(ticket.Executor)) + ";x=1", 400, ticket.RejectMalformedQuery},
			{"twice", query(func(q url.Values) { q.Add("role", "harness") }), 400, ticket.RejectMalformedQuery},
			{"bad signature", query(func(q url.Values) { q.Set("signature", "AAAA") }), 401, ticket.RejectInvalidSignature},
			{"bad environment id", change(func(t *ticket.Ticket) { t.EnvironmentID = "a/b" }), 400, ticket.RejectMalformedQuery},
			{"bad registration id", change(func(t *ticket.Ticket) { t.RegistrationID = "a.>" }), 400, ticket.RejectMalformedQuery},
			{"unknown environment", change(func(t *ticket.Ticket) { t.EnvironmentID = "nobody" }), 410, rejectUnknownRoute},
			{"replaced registration", change(func(t *ticket.Ticket) { t.RegistrationID = "reg_old" }), 410, rejectUnknownRoute},
			{"unknown principal", change(func(t *ticket.Ticket) { t.Principal = "key:0000" }), 403, ticket.RejectInvalidRole},
			{"revoked principal", change(func(t *ticket.Ticket) { t.Principal = revoked }), 403, ticket.RejectInvalidRole},
			{"role of another principal", change(func(t *ticket.Ticket) { t.Principal = c.harnessKey }), 403, ticket.RejectInvalidRole},
			{"environment of another principal", change(func(t *ticket.Ticket) { t.Principal = narrow }), 403, ticket.RejectInvalidRole},
			{"harness without executor", s.url(offline), 503, rejectRouteUnavailable},
			{"draining executor", draining.url(draining.ticket(ticket.Executor)), 503, rejectDraining},
			{"draining harness", draining.url(draining.ticket(ticket.Harness)), 503, rejectDraining},
			{"too many executors", full.url(full.ticket(ticket.Executor)), 503, rejectRouteUnavailable},
			{"too many harnesses", full.url(full.ticket(ticket.Harness)), 429, rejectRouteUnavailable},
		} {
			s.wantRefusal(tt.name, tt.url, nil, tt.status, tt.reason)
		}
		// A header that says nothing is refused, so that no stream is without its owner by mistake.
		s.wantRefusal("malformed owners", s.url(s.ticket(ticket.Executor)), http.Header{wire.HeaderStreamOwners: {"abc"}}, 400, rejectMalformedHeader)
		// While the store does not answer nobody is refused for good.
		c.fake.Away(true)
		s.wantRefusal("no store", s.url(s.ticket(ticket.Executor)), nil, 503, rejectRouteUnavailable)
		c.fake.Away(false)

		client := http.Client{Transport: &http.Transport{DialContext: s.dial, DisableKeepAlives: true}}
		for url, want := range map[string]string{
			strings.Replace(s.url(s.ticket(ticket.Executor)), "ws", "http", 1): "",
			"http://" + s.host + ticket.RendezvousPath:                         ticket.RejectMissingRole,
		} {
			resp := rig.Value(client.Get(url)) // and no upgrade
			resp.Body.Close()
			got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(wire.HeaderRejectionReason))
			rig.Is(c.t, got, "400 "+want, "status and reason")
		}
	})
}

// wantRefusal expects that a server, which the URL may name another one than, refuses a websocket.
func (ts *relayServer) wantRefusal(what, rawURL string, header http.Header, status int, reason string) {
	ts.c.t.Helper()
	for _, s := range ts.c.servers {
		if strings.HasPrefix(rawURL, "ws://"+s.host) {
			ts = s
		}
	}
	s, err := ts.connect(rawURL, header)
	if err == nil {
		s.Close()
	}
	refused, ok := errors.AsType[*socket.RefusedError](err)
	rig.Is(ts.c.t, !ok || refused.Status != status || refused.Reason != reason, false,
		"%s: got %v, want %d %s", what, err, status, reason)
}

// TestTicketIsReusable: the reference connects with one URL again and again.
func TestTicketIsReusable(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		k := s.ticket(ticket.Executor)
		for range 3 {
			e := s.end(k)
			c.waitOnline(s)
			h := s.harness()
			opened(h, e, "stream", 0)
			e.socket.Close()
			h.wantEnd()
		}
	})
}

// TestWebsocketsComeAndGo: a principal whose websockets end as soon as they are open
// is refused after as many as it may have; others are not.
func TestWebsocketsComeAndGo(t *testing.T) {
	bubble(t, func(c *cluster) {
		const most = 5
		s := c.server(settings{Limits: store.Limits{Connections: most, RequestBurst: most, Requests: 1e-6}})
		e, busy := s.executor(), s.strange()
		for range most {
			s.end(busy).socket.Close()
		}
		c.settles("its websockets have ended", func() bool { return s.metrics.Harnesses.Load() == 0 })
		for range 3 {
			s.wantRefusal("one more", s.url(busy), nil, http.StatusTooManyRequests, rejectRouteUnavailable)
		}
		opened(s.harness(), e, "of others", 0)
	})
}

// minByteBurst is how many bytes a principal may relay at once, however low its rate:
// the constant of this name in package limits.
const minByteBurst = 1 << 20

// TestFramesCount: a principal that sends tiny frames or text messages pays for them with
// more than their length of its bytes a second, since they cost the processor more.
func TestFramesCount(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{Limits: store.Limits{Bytes: 1}}) // and minByteBurst at once
		left := func(id string) int { return int(s.limits.Allowance(id).Bytes.Tokens()) }
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 0)
		const frames = 100
		for n := range uint32(frames) {
			e.want(h.sendFrame(data("stream", n, "x")))
		}
		n := left(c.harnessKey)
		rig.Is(c.t, n > minByteBurst-frames*limits.FrameCost, false, "%d frames have left %d of %d bytes", frames, n, minByteBurst)

		k := s.strange()
		dialer := websocket.Dialer{NetDialContext: s.dial}
		ws, _, err := dialer.Dial(s.url(k), nil)
		rig.Must(c.t, err)
		defer ws.Close()
		const texts = 3
		for range texts {
			rig.Must(c.t, ws.WriteMessage(websocket.TextMessage, []byte("x")))
		}
		last := appended(resume("last"))
		rig.Must(c.t, ws.WriteMessage(websocket.BinaryMessage, last))
		e.want(last)
		n = left(k.Principal)
		rig.Is(c.t, n > minByteBurst-texts*socket.MaxMessage, false, "%d texts have left %d of %d bytes", texts, n, minByteBurst)
	})
}

// TestHalfMessages: a principal that has sent too many large messages by half has to wait
// with the next one. Other principals need not.
func TestHalfMessages(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e, h := s.executor(), s.harness()
		opened(h, e, "stream", 0)
		large := s.limits.Large(&store.Principal{ID: c.harnessKey})
		for range cap(large) { // as halves of messages do
			large <- struct{}{}
		}
		late := data("stream", 1, long)
		h.trySend(late)
		other := s.stranger()
		opened(other, e, "of others", 0)
		e.want(other.sendFrame(data("of others", 1, long)))
		<-large
		e.want(appended(late))
		for range cap(large) - 1 {
			<-large
		}
	})
}
