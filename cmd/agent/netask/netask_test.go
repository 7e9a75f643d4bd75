package netask

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/protocol"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values      []string
		on, managed bool
		local       bool
		domains     string
		review      string
		wrong       string
	}{
		{nil, false, false, false, "map[]", "[]", ""},
		{[]string{"off"}, false, false, false, "map[]", "[]", ""},
		{[]string{"on"}, true, false, false, "map[]", "[]", ""},
		{[]string{"ask"}, false, true, false, "map[]", "[]", ""},
		{[]string{"allow=a.org,*.b.org:443", "deny=c.org ask=d.org"}, false, true, false, "map[*.b.org:443:allow a.org:allow c.org:deny]", "[d.org]", ""},
		{[]string{"allow=a.org", "local"}, false, true, true, "map[a.org:allow]", "[]", ""},
		{[]string{"allow=a.org", "off"}, false, false, false, "", "", "exclude each other"},
		{[]string{"on", "off"}, false, false, false, "", "", "exclude each other"},
		{[]string{"allow=a.org deny=a.org"}, false, false, false, "", "", "allows and denies a.org"},
		{[]string{"allow=,"}, false, false, false, "", "", "allow= names no host"},
		{[]string{"on", "local"}, false, false, false, "", "", "exclude each other"},
		{[]string{"local=a.org"}, false, false, false, "", "", "is not on, off, ask"},
		{[]string{"allow"}, false, false, false, "", "", "is not on, off, ask"},
		{[]string{"permit=a"}, false, false, false, "", "", "is not on, off, ask"},
		{[]string{"deny=*"}, false, false, false, "", "", "invalid value for network.denied_domains"},
	} {
		w, err := Parse(tt.values)
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%q: %v, want %s", tt.values, err, tt.wrong)
			}
		case err != nil || w.On != tt.on || w.Managed != tt.managed || w.local != tt.local || fmt.Sprint(w.domains) != tt.domains || fmt.Sprint(w.review) != tt.review:
			t.Errorf("%q: %+v, %v", tt.values, w, err)
		}
	}
}

// terminal is a user at a terminal: what they see, and what they type at each question.
type terminal struct {
	net.Conn
	mu   sync.Mutex
	seen strings.Builder
	done chan struct{}
}

// typing returns a terminal at which these answers are typed, and then nothing more.
func typing(answers ...string) *terminal {
	ours, theirs := net.Pipe()
	u := &terminal{Conn: ours, done: make(chan struct{})}
	go func() {
		defer close(u.done)
		buf := make([]byte, 4096)
		for _, answer := range answers {
			for asked := false; !asked; {
				n, err := theirs.Read(buf)
				if err != nil {
					return
				}
				u.mu.Lock()
				u.seen.Write(buf[:n])
				asked = strings.HasSuffix(u.seen.String(), "? ")
				u.mu.Unlock()
			}
			if _, err := io.WriteString(theirs, answer+"\n"); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, theirs)
	}()
	return u
}

// TestAsker: what the user says holds once or for the run, whatever the protocol; a word that is
// none is asked again.
func TestAsker(t *testing.T) {
	t.Parallel()
	u := typing("once", "a", "what?", "n", "y")
	a := newAsker(u)
	for i, tt := range []struct {
		host, protocol string
		want           string
	}{
		{"a.org", "http", "allow"},          // once
		{"a.org", "https_connect", "allow"}, // always
		{"a.org", "socks5_tcp", "allow"},    // not asked
		{"b.org", "http", "deny"},           // what?, and no
		{"b.org", "https_connect", "deny"},  // not asked
		{"c.org", "http", "allow"},          // once
	} {
		var answer protocol.PolicyAnswer
		params := &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Protocol: tt.protocol, Host: tt.host, Port: 1}}
		if err := a.answer(t.Context(), "", params, &answer); err != nil || answer.Decision.Type != tt.want {
			t.Errorf("%d: %+v, %v, want %s", i, answer.Decision, err, tt.want)
		}
	}
	if n := strings.Count(u.seen.String(), "wants to reach"); n != 5 {
		t.Errorf("asked %d times, want 5: %s", n, u.seen.String())
	}
	// Nobody answers: the end of the network does.
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error)
	go func() {
		var answer protocol.PolicyAnswer
		asked <- a.answer(ctx, "", &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Host: "d.org"}}, &answer)
	}()
	cancel()
	if err := <-asked; err == nil {
		t.Error("answered by nobody")
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	<-u.done
}

func TestTally(t *testing.T) {
	t.Parallel()
	var n tally
	add := func(host, decision, reason string, times int) {
		for range times {
			n.add(&protocol.PolicyDecision{Host: host, Port: 443, Decision: decision, Reason: reason})
		}
	}
	if lines := n.lines(); lines != nil {
		t.Errorf("nothing: %q", lines)
	}
	add("b.org", "allow", "allow", 1)
	add("a.org", "allow", "allow", 3)
	add("2001:4860::1", "deny", "not_allowed", 2)
	want := []string{"network: reached a.org:443 (3 times)", "network: reached b.org:443", "network: refused [2001:4860::1]:443 (2 times): not allowed"}
	if got := n.lines(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for i := range maxTally {
		add(fmt.Sprint("h", i), "deny", "denied", 1)
	}
	if got := n.lines(); len(got) != maxTally+1 || got[maxTally] != "network: 3 more attempts at other places" {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
}
