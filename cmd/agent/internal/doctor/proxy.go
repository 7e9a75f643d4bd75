package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// Proxy reports whether this host can confine a command to its proxy in one way
// (network.md 9).
type Proxy struct {
	Name  string `json:"name"`  // "proxy:netns", "proxy:supervised" as in sandboxLayers; "transparent:netns", "transparent:supervised"
	OK    bool   `json:"ok"`    // the proxy was reached, and every attempt to bypass it has failed
	Tried string `json:"tried"` // how this way was tried
	// Error says what is missing, or which attempts succeeded; Remedy how to change
	// that, if it is known. Both are empty if OK.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// proxies tries both ways to confine a command to a proxy, and to make its connections transparent.
func proxies(ctx context.Context, host sandbox.Host, cfg Config) []Proxy {
	with, without := host, host
	with.Layers = host.Layers.Without(sandbox.Supervised)
	without.Layers = host.Layers.Without(sandbox.NetNS)
	return []Proxy{
		goRound(ctx, "proxy:netns", with, cfg, false),
		goRound(ctx, "proxy:supervised", without, cfg, false),
		goRound(ctx, "transparent:netns", with, cfg, true),
		goRound(ctx, "transparent:supervised", without, cfg, true),
	}
}

// goRound tries one way, with a host that has only the layers for this way.
func goRound(ctx context.Context, name string, host sandbox.Host, cfg Config, transparent bool) Proxy {
	p := Proxy{Name: name, Tried: "connect to another port, send a datagram, create other sockets, connect from outside"}
	if transparent {
		p.Tried = "connect to an allowed address and to another one; the same attempts"
	}
	could, err := attempts(ctx, host, cfg, transparent)
	if missing, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		p.Error, p.Remedy = missing.Layer+" is missing: "+missing.Reason, missing.Remedy
		return p
	}
	switch {
	case err != nil:
		p.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
	case len(could) > 0:
		p.Error = strings.Join(could, "; ")
	}
	p.OK = p.Error == ""
	return p
}

// attempts confines a process to a proxy, and returns the forbidden things that it could do.
func attempts(ctx context.Context, host sandbox.Host, cfg Config, transparent bool) (could []string, err error) {
	elsewhere, err := listenElsewhere()
	if err != nil {
		return nil, err
	}
	defer elsewhere.close()
	door := confine.Door{
		Host: func() (sandbox.Host, error) { return host, nil }, Operator: cfg.Operator, Served: new(resolve.Served),
		AgentPorts: []uint16{elsewhere.tcpPort()}, // this port of the agent must be out of reach, like all other ports
	}
	root := sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}}
	held, err := door.EnterManaged(root, confine.Managed{Transparent: transparent})
	if err != nil {
		return nil, err
	}
	defer held.Release()
	proxy := held.Gate().HTTP()
	var greeting sync.WaitGroup
	greeting.Go(func() { greet(proxy) })
	defer greeting.Wait()
	defer held.Gate().Close()
	if transparent {
		held.Gate().Held().Serve(gate.Handler{Prepare: prepare, Resolver: deaf{}})
	}

	out, err := run(ctx, held, probe.RoundArgs(port(proxy.Addr()), elsewhere.tcpPort(), elsewhere.udpPort(), transparent))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		could = append(could, strings.TrimSpace(line))
	}
	if elsewhere.reached() {
		could = append(could, "data has arrived at another port of this host")
	}
	if getsIn(proxy.Addr()) {
		could = append(could, "another process could connect to the proxy")
	}
	return could, nil
}

// run runs this program in the sandbox, and returns what it writes.
func run(ctx context.Context, held *confine.Held, args []string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	code, stage := 0, error(nil)
	p, err := procs.Start(procs.Spec{
		Argv: append([]string{self}, args...), Dir: "/", Env: []string{"GOMAXPROCS=2"},
		Stage: held.Stage,
		Sink: func(e procs.Event) {
			out.Write(e.Data)
			if e.Kind == procs.Exited {
				code = e.ExitCode
			}
		},
	})
	if err != nil {
		return "", err
	}
	p.Begin()
	select {
	case <-p.Done():
	case <-ctx.Done():
		stage = context.Cause(ctx)
	}
	p.Close()
	if stage == nil && code != 0 {
		stage = fmt.Errorf("the process has ended with code %d: %s", code, strings.TrimSpace(out.String()))
	}
	return out.String(), stage
}

// greet plays the proxy: it sends the greeting to each client.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, probe.RoundGreeting)
		_ = conn.Close()
	}
}

// prepare allows one address, at which the greeting waits, and refuses all others.
func prepare(_ context.Context, to, _ netip.AddrPort) (gate.Prepared, syscall.Errno) {
	if to != probe.RoundAllowed {
		return nil, syscall.EACCES
	}
	return greeting{}, 0
}

type greeting struct{}

func (greeting) Close() {}

func (greeting) Join(conn *net.TCPConn) {
	_, _ = io.WriteString(conn, probe.RoundGreeting)
	_ = conn.Close()
}

// deaf is a resolver that nobody asks.
type deaf struct{}

func (deaf) Datagrams(conn net.PacketConn) { _ = conn.Close() }
func (deaf) Packets(conn net.Conn)         { _ = conn.Close() }
func (deaf) Listen(l net.Listener)         { _ = l.Close() }

// getsIn reports whether this process, which is not confined, can connect to the proxy.
func getsIn(proxy net.Addr) bool {
	conn, err := net.Dial("tcp", proxy.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	text, _ := io.ReadAll(io.LimitReader(conn, int64(len(probe.RoundGreeting))))
	return string(text) == probe.RoundGreeting
}

// elsewhere has addresses that a confined process must not reach.
type elsewhere struct {
	tcp      net.Listener
	udp      *net.UDPConn
	accepted atomic.Bool
	done     chan struct{}
}

func listenElsewhere() (*elsewhere, error) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	e := &elsewhere{tcp: tcp, udp: udp, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			e.accepted.Store(true)
			_ = conn.Close()
		}
	}()
	return e, nil
}

// reached reports whether a connection or a datagram has arrived. It returns true if this is
// unknown.
func (e *elsewhere) reached() bool {
	waits := false
	raw, err := e.udp.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
			waits = err == nil
		})
	}
	return e.accepted.Load() || waits || err != nil
}

func (e *elsewhere) close() {
	_, _ = e.tcp.Close(), e.udp.Close()
	<-e.done
}

func (e *elsewhere) tcpPort() uint16 { return port(e.tcp.Addr()) }
func (e *elsewhere) udpPort() uint16 { return port(e.udp.LocalAddr()) }

// port returns the port of an address.
func port(addr net.Addr) uint16 { return netip.MustParseAddrPort(addr.String()).Port() }
