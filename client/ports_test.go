package client_test

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestPortWatch: each port that opens or closes is told once, also over a loss, and a call of Next ends with the watch.
func TestPortWatch(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		f.info.Capabilities.Ports = true
		port := func(n uint16) []protocol.Port { return []protocol.Port{{Port: n, Address: "::"}} }
		open := port(1)
		f.on(protocol.MethodPortWatch, func(l *link, _ request) any {
			l.notify(protocol.MethodPortChanged, protocol.PortChangedNotification{WatchID: "p1", Opened: port(7), Closed: []protocol.Port{}}) // too early
			return protocol.PortListResult{Ports: open}
		})
		w := rig.Value(f.connect(t).WatchPorts(t.Context(), nil))
		told := func() string { return fmt.Sprint(rig.Value(w.Next(t.Context()))) }
		rig.Is(t, told(), "{[{1 :: <nil> <nil> <nil>} {7 :: <nil> <nil> <nil>}] []}", "at first")
		f.current().notify(protocol.MethodPortChanged, protocol.PortChangedNotification{WatchID: "p1", Opened: port(2), Closed: port(1)})
		rig.Is(t, told(), "{[{2 :: <nil> <nil> <nil>}] [{1 :: <nil> <nil> <nil>}]}", "a change")
		open = port(3)
		f.cut()
		rig.Is(t, told(), "{[{3 :: <nil> <nil> <nil>}] [{2 :: <nil> <nil> <nil>}]}", "over a loss")
		go w.Close()
		rig.Is(t, rig.Err(w.Next(t.Context())), fs.ErrClosed, "the error")
	})
}
