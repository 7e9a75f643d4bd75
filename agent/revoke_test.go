package agent

import (
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// held is a connection whose other end may lose its right to connect.
type held struct {
	rpc.Conn
	holder string
}

func (c held) Holder() string { return c.holder }

// holder returns a client of a holder, before its handshake.
func (r *rig) holder(holder string) *client {
	ours, theirs := rpc.Pipe()
	return r.clientOn(ours, r.accept(ours, held{theirs, holder}))
}

// TestRevokedHolder: what a holder has left running ends when its right is revoked, in
// sessions with a name and without a client, too, and in one that another holder has made.
// Those of others go on.
func TestRevokedHolder(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		r := newRig(t, Config{KeepRevoked: keep})
		for _, s := range []struct{ name, maker, starter string }{
			{"left", "bad", "bad"}, {"guest", "good", "bad"}, {"other", "good", "good"}, {"unknown", "", ""},
		} {
			c := r.holder(s.maker).named(s.name, protocol.InitializeParams{})
			if s.starter != s.maker {
				c.peer.Close()
				c = r.holder(s.starter)
				c.named(s.name, protocol.InitializeParams{Existing: true, Take: true})
			}
			c.must("process/start", sh("p", "echo up; sleep 1000"), nil)
			c.peer.Close()
		}
		if got := len(r.agent.Holders()); got != 2 {
			t.Errorf("%d holders have something, want 2", got)
		}
		r.agent.Revoke("nobody")
		r.agent.Revoke("bad")
		names := map[string]int{}
		for _, s := range r.holder("good").named("new", protocol.InitializeParams{}).sessions() {
			names[s.Name] = s.Running
		}
		want := map[string]int{"other": 1, "unknown": 1, "new": 0}
		if keep {
			want["left"], want["guest"] = 1, 1
		}
		if len(names) != len(want) {
			t.Errorf("keep %v: sessions %v, want %v", keep, names, want)
		}
		for name, running := range want {
			if got, ok := names[name]; !ok || got != running {
				t.Errorf("keep %v: %d run in session %s, want %d", keep, got, name, running)
			}
		}
	}
}
