package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// lowered lowers the bound of a pool of the process for a test.
func lowered(t *testing.T, p *share.Pool, to int64) {
	before := p.SetMax(to)
	t.Cleanup(func() { p.SetMax(before) })
}

// counted is a pool of which clients take one after the other. take tries to take number i.
type counted struct {
	half int
	take func(c *client, i int) error
}

// walk has one client take all that it can, and then another one its part.
func (p counted) walk(t *testing.T, a, b *client) {
	n := 0
	for ; n < 1000 && p.take(a, n) == nil; n++ {
	}
	rig.Is(t, n, p.half, "one alone has")
	rig.Check(t, p.take(b, 0))
}

// pools has, for each row of the table of docs/limits.md, a walk: one client takes all that it can,
// and another one still gets its part.
var pools = map[string]func(t *testing.T, r *harness, a, b *client){
	"connections": func(t *testing.T, r *harness, a, b *client) {
		lowered(t, share.Connections, 8)
		l := rig.Value(transport.Listen(transport.Config{URL: "ws://127.0.0.1:0"}))
		served := make(chan error, 1)
		go func() { served <- r.agent.Serve(t.Context(), l) }()
		var open []io.Closer
		dial := func(c *client, _ int) error {
			if c == b {
				return share.Connections.Take("sub:b", 1)
			}
			conn, err := transport.Dial(t.Context(), l.URL(), transport.DialConfig{})
			if err == nil {
				open = append(open, conn)
			}
			return err
		}
		counted{4, dial}.walk(t, a, b)
		share.Connections.Give("sub:b", 1)
		rig.Says(t, dial(a, 0), "429", "one more")
		rig.Must(t, open[0].Close())
		rig.Until(t, "its place is free", func() bool { return dial(a, 0) == nil })
		for _, conn := range open {
			_ = conn.Close()
		}
		rig.Must(t, l.Close(), <-served)
	},
	"open descriptors": func(t *testing.T, _ *harness, a, b *client) {
		before := share.Descriptors().Used()
		lowered(t, share.Descriptors(), 60+before)
		file := filepath.Join(t.TempDir(), "f")
		rig.Must(t, os.WriteFile(file, nil, 0o600))
		counted{30, func(c *client, i int) error {
			return c.call("fs/open", object{"handleId": fmt.Sprint(i), "path": uri(file), "mode": "read"}, nil)
		}}.walk(t, a, b)
		b.must("process/start", sh("p", "exit 0"), nil)
		b.awaitNote("process/closed", "p")
		rig.Says(t, a.call("process/start", sh("p", "exit 0"), nil), "no more open descriptors", "a start")
		rig.Until(t, "the process is freed", func() bool { return share.Descriptors().Used() == before+31 })
		a.must("fs/close", object{"handleId": "0"}, nil)
		a.must("fs/open", object{"handleId": "0", "path": uri(file), "mode": "read"}, nil)
		b.must("process/start", sh("left", "sleep 600 >/dev/null 2>&1 &"), nil)
		b.awaitNote("process/closed", "left")
		self := rig.Value(unix.PidfdOpen(os.Getpid(), 0))
		defer unix.Close(self)
		if unix.PidfdSendSignal(self, 0, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP) != unix.EINVAL { // older kernels need no descriptor
			rig.Is(t, share.Descriptors().Used(), before+32, "with the group that it has left")
		}
	},
	"watched directories": func(t *testing.T, r *harness, a, b *client) {
		r.agent.watcher.Dirs.Max = 16 // each watch has its root, and counts one above
		counted{4, func(c *client, i int) error {
			return c.call("fs/watch", object{"watchId": fmt.Sprint(i), "path": uri("/")}, nil)
		}}.walk(t, a, b)
	},
	"sockets": func(t *testing.T, r *harness, a, b *client) {
		r.agent.sockets.Sockets.Max = 8
		address := "tcp://" + listenFor(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		counted{4, func(c *client, i int) error {
			return c.call("socket/open", object{"socketId": fmt.Sprint(i), "address": address}, nil)
		}}.walk(t, a, b)
	},
	"unacknowledged bytes of sockets": func(t *testing.T, r *harness, a, b *client) {
		r.agent.sockets.Bytes.Max = 256 << 10
		address := "tcp://" + listenFor(t, flood)
		a.must("socket/open", object{"socketId": "s", "address": address}, nil)
		rig.Until(t, "one alone has half", func() bool { return r.agent.sockets.Bytes.Used() == 128<<10 })
		b.must("socket/open", object{"socketId": "s", "address": address}, nil)
		rig.Until(t, "the other one has half of the rest", func() bool { return r.agent.sockets.Bytes.Used() == 192<<10 })
	},
	"connections being made in a sandbox": func(t *testing.T, r *harness, _, b *client) {
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error)
		for range 2 * maxConfinedDials {
			go func() { waited <- r.agent.sandboxes.dials.Wait(ctx, "sub:a", 1) }()
		}
		for range maxConfinedDials / 2 {
			rig.Must(t, <-waited)
		}
		address := "tcp://" + listenFor(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		b.must("socket/open", object{"socketId": "s", "address": address, "sandbox": managed("enabled", special("root", "read"))}, nil)
		cancel()
		for range 2*maxConfinedDials - maxConfinedDials/2 {
			rig.Is(t, <-waited, context.Canceled, "the others waited")
		}
	},
	"processes that serve file requests under a sandbox": func(t *testing.T, r *harness, a, b *client) {
		helpers := &r.agent.sandboxes.helpers.Processes
		dir := t.TempDir()
		makes := func(c *client, name string) error {
			return c.call("fs/createDirectory", object{"path": uri(dir + "/" + name), "recursive": false, "sandbox": managed("restricted", special("root", "read"), at(dir, "write"))}, nil)
		}
		counted{16, func(c *client, _ int) error {
			if c == a {
				return helpers.Take("sub:a", 1)
			}
			return makes(c, "b")
		}}.walk(t, a, b)
		helpers.Give("sub:a", 16)
		rig.Check(t, makes(a, "a"))
		rig.Is(t, helpers.Used(), 2, "of two principals, under one policy")
	},
	"policies of such requests that are looked up": func(t *testing.T, r *harness, a, b *client) {
		dir := t.TempDir()
		counted{4, func(c *client, _ int) error {
			if c == a {
				return r.agent.sandboxes.helpers.Lookups.Take("sub:a", 1)
			}
			return c.call("fs/getMetadata", object{"path": uri(dir), "sandbox": managed("restricted", special("root", "read"), at(dir, "write"))}, nil)
		}}.walk(t, a, b)
	},
	"sessions with a name": func(t *testing.T, r *harness, a, b *client) {
		counted{maxNamedOfOne, func(c *client, i int) error {
			who := r.session(c.session).owner
			_, _, err := r.agent.open(&connection{principal: who, owner: who}, opening{name: fmt.Sprint("n", i)})
			return err
		}}.walk(t, a, b)
	},
	"output that is kept": func(t *testing.T, r *harness, a, b *client) {
		r.agent.budget.Max = 1 << 20
		run := func(c *client, id string) {
			c.must("process/start", sh(id, "head -c 100000 /dev/zero"), nil)
			c.awaitNote("process/closed", id)
		}
		run(b, "p")
		for i := range 20 {
			run(a, fmt.Sprint(i))
		}
		var read protocol.ReadResult
		b.must("process/read", object{"processId": "p"}, &read)
		rig.Is(t, len(read.Chunks) > 0 && read.Chunks[0].Seq == 1, true, "the other one's output is whole: %d chunks", len(read.Chunks))
		rig.Is(t, r.agent.budget.Used() > 800_000, true, "bytes that are kept: %d", r.agent.budget.Used())
	},
	"ended processes": func(t *testing.T, r *harness, a, b *client) {
		r.agent.ended.Max = 3
		for i, c := range []*client{b, a, a, a} {
			c.must("process/start", sh(fmt.Sprint(i), "exit 0"), nil)
			c.awaitNote("process/closed", fmt.Sprint(i))
		}
		rig.Until(t, "the owner with the most processes has lost the first one", func() bool {
			return a.call("process/read", object{"processId": "1"}, nil) != nil
		})
		a.must("process/read", object{"processId": "2"}, nil)
		b.must("process/read", object{"processId": "0"}, nil)
	},
	"sessions without a client in which nothing runs": func(t *testing.T, r *harness, a, b *client) {
		r.agent.shelved.Max = 3
		left := []string{b.session}
		b.drop()
		for range 3 {
			c := r.by(known{principal: "sub:a"}).named("", protocol.InitializeParams{})
			left = append(left, c.session)
			c.drop()
		}
		rig.Until(t, "the owner with the most sessions has lost the first one", func() bool { return r.session(left[1]) == nil })
		rig.Check(t, r.by(known{principal: "sub:a"}).hello(left[2]))
		rig.Check(t, r.by(known{principal: "sub:b"}).hello(left[0]))
	},
	"content that clients have asked for and not yet read": func(t *testing.T, r *harness, a, b *client) {
		r.agent.content.Pool.Max = 16 << 20
		file := filepath.Join(t.TempDir(), "f")
		rig.Must(t, os.WriteFile(file, make([]byte, 2<<20), 0o600))
		counted{8, func(c *client, _ int) error {
			if c == a {
				return r.agent.content.Take("sub:a", 1<<20)
			}
			return c.call("fs/readFile", object{"path": uri(file)}, nil)
		}}.walk(t, a, b)
	},
	"decoders of compressed answers to `http/request`": func(t *testing.T, r *harness, a, b *client) {
		r.agent.decoders.Max, r.agent.decoders.Patience = 8<<20, 0
		counted{4, func(c *client, _ int) error {
			return rig.Err(r.agent.decoders.Decoder(t.Context(), r.session(c.session).owner, 1<<20))
		}}.walk(t, a, b)
	},
	"runs of `capabilities/discoverV2` with `details`": func(t *testing.T, r *harness, a, b *client) {
		counted{1, func(c *client, _ int) error {
			if c == a {
				return r.agent.skills.Details.Take("sub:a", 1)
			}
			return c.call("capabilities/discoverV2", object{"cwd": uri("/"), "details": true}, nil)
		}}.walk(t, a, b)
	},
	"shell snapshots": func(t *testing.T, r *harness, a, b *client) {
		counted{32, func(c *client, _ int) error {
			s := r.session(c.session)
			return s.snapshots.Budget.Take(s.snapshots.Owner, 1<<20)
		}}.walk(t, a, b)
	},
	"connections through proxies": func(t *testing.T, _ *harness, a, b *client) {
		target := listenFor(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		proxies := map[*client]string{}
		for _, c := range []*client{a, b} {
			proxies[c] = c.proxyOf(t, proxied("p", printProxy, "127.0.0.1")).Host
		}
		lowered(t, netproxy.Memory, 8*48<<10)
		counted{4, func(c *client, _ int) error {
			conn := rig.Value(net.Dial("tcp", proxies[c]))
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\n\r\n", target)
			line, err := bufio.NewReader(conn).ReadString('\n')
			rig.Is(t, err != nil || strings.Contains(line, "200"), true, "the answer is %q", line)
			return err
		}}.walk(t, a, b)
	},
}

// elsewhere has the rows that another package walks.
var elsewhere = map[string]string{
	"streams through a registry":                                  "relay.TestStreamsLimits",
	"handshakes of such streams that the registry is asked about": "relay.TestStreamsLimits",
}

// TestShares walks the table of pools in docs/limits.md.
func TestShares(t *testing.T) { // not parallel: some pools are those of the process
	page := rig.Value(os.ReadFile("../docs/limits.md"))
	_, table, _ := strings.Cut(string(page), "\n## Shares\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| ([a-z][^|]*) \| [^|]*[0-9]`).FindAllStringSubmatch(table, -1)
	rig.Is(t, len(rows), len(pools)+len(elsewhere), "rows of the table")
	for _, row := range rows {
		if elsewhere[row[1]] != "" {
			continue
		}
		t.Run(row[1], func(t *testing.T) {
			walk := pools[row[1]]
			if walk == nil {
				t.Fatal("no walk for this row")
			}
			r := newHarness(t, Config{})
			walk(t, r, r.by(known{principal: "sub:a"}).named("", protocol.InitializeParams{}), r.by(known{principal: "sub:b"}).named("", protocol.InitializeParams{}))
		})
	}
}
