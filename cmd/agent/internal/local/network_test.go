package local

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
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
		{[]string{"allow=a.org", "off"}, false, false, false, "", "", "cannot be used together"},
		{[]string{"on", "off"}, false, false, false, "", "", "cannot be used together"},
		{[]string{"allow=a.org deny=a.org"}, false, false, false, "", "", "allows and denies a.org"},
		{[]string{"allow=,"}, false, false, false, "", "", "allow= names no host"},
		{[]string{"on", "local"}, false, false, false, "", "", "cannot be used together"},
		{[]string{"local=a.org"}, false, false, false, "", "", "is not one of on, off, ask"},
		{[]string{"allow"}, false, false, false, "", "", "is not one of on, off, ask"},
		{[]string{"permit=a"}, false, false, false, "", "", "is not one of on, off, ask"},
		{[]string{"deny=*"}, false, false, false, "", "", "invalid value for network.denied_domains"},
	} {
		w, err := ParseNetwork(tt.values)
		switch {
		case tt.wrong != "":
			rig.Is(t, err != nil && strings.Contains(err.Error(), tt.wrong), true, "%q: %v, want %s", tt.values, err, tt.wrong)
		case err != nil || w.On != tt.on || w.Managed != tt.managed || w.local != tt.local || fmt.Sprint(w.domains) != tt.domains || fmt.Sprint(w.review) != tt.review:
			t.Errorf("%q: %+v, %v", tt.values, w, err)
		}
	}
}

// TestAsker: what the user says holds once or for the run, whatever the protocol; a word that is
// none is asked again.
func TestAsker(t *testing.T) {
	t.Parallel()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	defer ptmx.Close()
	terminal := console.NewTerminal(tty)
	a := newAsker(terminal)
	screen := bufio.NewReader(ptmx)
	asked := 0
	for i, tt := range []struct {
		host, protocol string
		types          []string
		want           string
	}{
		{"a.org", "http", []string{"once"}, "allow"},
		{"a.org", "https_connect", []string{"a"}, "allow"},
		{"a.org", "socks5_tcp", nil, "allow"},
		{"b.org", "http", []string{"what?", "n"}, "deny"},
		{"b.org", "https_connect", nil, "deny"},
		{"c.org", "http", []string{"y"}, "allow"},
	} {
		answered := make(chan error)
		var answer protocol.PolicyAnswer
		params := &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Protocol: tt.protocol, Host: tt.host, Port: 1}}
		go func() { answered <- a.answer(t.Context(), "", params, &answer) }()
		for _, text := range tt.types {
			rig.Must(t, rig.Err(screen.ReadString('N')))
			asked++
			rig.Must(t, rig.Err(ptmx.WriteString(text+"\n")))
			rig.Must(t, rig.Err(screen.ReadString('\n'))) // the echo
		}
		rig.Check(t, <-answered)
		rig.Is(t, answer.Decision.Type, tt.want, "%d", i)
	}
	rig.Is(t, asked, 5, "times asked")
	// Nobody answers: the end of the network does, and that of the terminal.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var answer protocol.PolicyAnswer
	nobody := &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Host: "d.org"}}
	rig.Is(t, a.answer(ctx, "", nobody, &answer) != nil, true, "nobody answers")
	rig.Check(t, terminal.Close())
	rig.Is(t, a.answer(t.Context(), "", nobody, &answer) != nil, true, "nobody answers at a terminal that is closed")
}

func TestTally(t *testing.T) {
	t.Parallel()
	var n tally
	add := func(host, decision, reason string, times int) {
		for range times {
			n.add(&protocol.PolicyDecision{Host: host, Port: 443, Decision: decision, Reason: reason})
		}
	}
	rig.Is(t, len(n.lines()), 0, "lines of nothing")
	add("b.org", "allow", "allow", 1)
	add("a.org", "allow", "allow", 3)
	add("2001:4860::1", "deny", "not_allowed", 2)
	want := []string{"network: reached a.org:443 (3 times)", "network: reached b.org:443", "network: refused [2001:4860::1]:443 (2 times): not allowed"}
	rig.Same(t, "lines", want, n.lines())
	for i := range maxTally {
		add(fmt.Sprint("h", i), "deny", "denied", 1)
	}
	if got := n.lines(); len(got) != maxTally+1 || got[maxTally] != "network: 3 more attempts to reach other hosts" {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
}
