package netproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// socks has the proxy serve SOCKS5, and returns a proxied that dials it.
func socks(t testing.TB, r rules.Rules, cfg ...Config) *proxied {
	t.Helper()
	g := start(t, r, cfg...)
	g.serve(SOCKS5)
	return g
}

// through dials a place through SOCKS5.
func (g *proxied) through(at string) *net.TCPConn {
	g.t.Helper()
	conn := g.dial()
	say(g.t, conn, greeting+"\x05\x01\x00"+place(g.t, at))
	var back [12]byte
	if _, err := io.ReadFull(conn, back[:]); err != nil || back[3] != replySucceeded {
		g.t.Fatalf("SOCKS5 says %x, %v", back, err)
	}
	return conn
}

// greeting offers to do without authentication.
const greeting = "\x05\x01\x00"

// address returns a host and port as SOCKS5 has them.
func address(host string, port int) string {
	var b []byte
	if addr, err := netip.ParseAddr(host); err != nil {
		b = append([]byte{typeName, byte(len(host))}, host...)
	} else if addr.Is4() {
		b = append([]byte{typeIPv4}, addr.AsSlice()...)
	} else {
		b = append([]byte{typeIPv6}, addr.AsSlice()...)
	}
	return string(binary.BigEndian.AppendUint16(b, uint16(port)))
}

// place is an address HOST:PORT as SOCKS5 has it.
func place(t testing.TB, at string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(at)
	rig.Must(t, err)
	n, err := strconv.Atoi(port)
	rig.Must(t, err)
	return address(host, n)
}

// TestSOCKSReplies has the bytes of every refusal (network.md 5.2).
func TestSOCKSReplies(t *testing.T) {
	t.Parallel()
	const (
		rest    = "\x00\x01\x00\x00\x00\x00\x00\x00"
		denied  = "\x05\x00\x05\x02" + rest
		failed  = "\x05\x00\x05\x01" + rest
		refused = "\x05\x00\x05\x05" + rest
		command = "\x05\x00\x05\x07" + rest
		kind    = "\x05\x00\x05\x08" + rest
	)
	dead := rig.FreeAddress(t)
	for _, test := range []struct {
		name, in, want string
		reports        []string
	}{
		{"not listed", greeting + "\x05\x01\x00" + address("blocked.example", 443), denied, []string{"domain deny baseline_policy not_allowed socks5_tcp blocked.example:443 "}},
		{"denied", greeting + "\x05\x01\x00" + address("DENIED.example.", 443), denied, []string{"domain deny baseline_policy denied socks5_tcp denied.example:443 "}},
		{"local", greeting + "\x05\x01\x00" + address("127.0.0.2", 80), denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp 127.0.0.2:80 "}},
		{"local by a name that is an address", greeting + "\x05\x01\x00\x03\x09127.0.0.2\x00\x50", denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp 127.0.0.2:80 "}},
		{"local, IPv6", greeting + "\x05\x01\x00" + address("::1", 80), denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp [::1]:80 "}},
		{"mapped", greeting + "\x05\x01\x00" + address("::ffff:10.0.0.1", 80), denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp 10.0.0.1:80 "}},
		{"translated", greeting + "\x05\x01\x00" + address("64:ff9b::10.0.0.1", 80), denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp [64:ff9b::a00:1]:80 "}},
		{"decimal", greeting + "\x05\x01\x00" + address("2130706433", 80), denied, []string{"domain deny baseline_policy not_allowed_local socks5_tcp 2130706433:80 "}},
		{"nobody there", greeting + "\x05\x01\x00" + place(t, dead), refused, []string{"domain allow baseline_policy allow socks5_tcp " + dead + " "}},
		{"BIND", greeting + "\x05\x02\x00" + address("127.0.0.1", 80), command, nil},
		{"an unknown command", greeting + "\x05\x09\x00" + address("127.0.0.1", 80), command, nil},
		{"UDP, off", greeting + "\x05\x03\x00" + address("0.0.0.0", 0), command, nil},
		{"an unknown type", greeting + "\x05\x01\x00\x05\x00\x00", kind, nil},
		{"no name", greeting + "\x05\x01\x00\x03\x00\x00\x50", failed, nil},
		{"a name that is none", greeting + "\x05\x01\x00\x03\x03a b\x00\x50", failed, nil},
		{"a name with a zero", greeting + "\x05\x01\x00\x03\x0b127.0.0.1\x00x\x00\x50", failed, nil},
		{"a zone", greeting + "\x05\x01\x00\x03\x08fe80::1%\x00\x50", failed, nil},
		{"other reserved bytes", greeting + "\x05\x01\x01" + address("127.0.0.1", 80), failed, nil},
		{"no method", "\x05\x00", "\x05\xff", nil},
		{"a password", "\x05\x01\x02", "\x05\xff", nil},
		{"a password, or none", "\x05\x02\x02\x00\x05\x01\x00" + address("blocked.example", 443), denied, []string{"domain deny baseline_policy not_allowed socks5_tcp blocked.example:443 "}},
		{"SOCKS4", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "", nil},
		{"HTTP", "GET http://127.0.0.1/ HTTP/1.1\r\n\r\n", "", nil},
		{"SOCKS4 behind the greeting", greeting + "\x04\x01\x00" + address("127.0.0.1", 80), "\x05\x00", nil},
	} {
		r := allow("127.0.0.1")
		r.Domains["denied.example"] = rules.Deny
		g := socks(t, r)
		conn := g.dial()
		say(t, conn, test.in)
		back, err := io.ReadAll(conn)
		if string(back) != test.want && (err == nil || test.want != "") {
			t.Errorf("%s: %x, %v; want %x", test.name, back, err, test.want)
		}
		g.want(test.reports...)
	}
}

// TestSOCKS: a stream goes through, by address and by name, and what is sent early is not lost.
// The reply has the address of this end.
func TestSOCKS(t *testing.T) {
	t.Parallel()
	echo := listen(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, conn.RemoteAddr().String()+"\n")
		_, _ = io.Copy(conn, conn)
	})
	_, port, _ := net.SplitHostPort(echo)
	n, err := strconv.Atoi(port)
	rig.Must(t, err)
	for _, host := range []string{"127.0.0.1", "localhost", "name.test", "NAME.test."} {
		r := allow("127.0.0.1", "localhost", "name.test")
		r.Local = true
		g := socks(t, r, Config{Resolver: loopback(t).resolver})
		conn := g.dial()
		say(t, conn, greeting+"\x05\x01\x00"+address(host, n)+"early ")
		say(t, conn, "late")
		_ = conn.CloseWrite()
		back, err := io.ReadAll(conn)
		if err != nil || len(back) < 12 {
			t.Fatalf("%x, %v", back, err)
		}
		_, at, err := readAddress(bytes.NewReader(back[5:]))
		if line, rest, _ := strings.Cut(string(back[12:]), "\n"); err != nil || string(back[:10]) != "\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01" || !strings.HasSuffix(line, ":"+strconv.Itoa(int(at))) || rest != "early late" {
			t.Errorf("%s: %x %q", host, back[:12], back[12:])
		}
		g.want("domain allow baseline_policy allow socks5_tcp " + strings.ToLower(strings.TrimSuffix(host, ".")) + ":" + port + " ")
	}
}

// TestSOCKSLimited: in limited mode there is nothing but TLS that is looked into.
func TestSOCKSLimited(t *testing.T) {
	t.Parallel()
	r := allow("127.0.0.1")
	r.Limited = true
	g := socks(t, r, Config{Datagrams: datagrams(nil)})
	for _, port := range []int{80, 443} {
		conn := g.dial()
		say(t, conn, greeting+"\x05\x01\x00"+address("127.0.0.1", port))
		rig.Is(t, string(rig.Value(io.ReadAll(conn)))[:4], "\x05\x00\x05\x02", "%d", port)
	}
	a := associate(t, g, 0)
	a.send(t, "127.0.0.1:443", "x")
	a.ends(t)
	g.want("non_domain deny mode_guard method_not_allowed socks5_tcp 127.0.0.1:80 ", "domain allow baseline_policy allow socks5_tcp 127.0.0.1:443 ",
		"non_domain deny mode_guard mitm_required socks5_tcp 127.0.0.1:443 ", "non_domain deny mode_guard method_not_allowed socks5_udp 127.0.0.1:443 ")
}

// TestSOCKSAsks: what the list does not decide is asked about, and names are compared with TLS.
func TestSOCKSAsks(t *testing.T) {
	t.Parallel()
	s, _ := tlsSite(t)
	var asked atomic.Pointer[Question]
	g := socks(t, rules.Rules{Local: true}, Config{Resolver: loopback(t).resolver, Decide: func(_ context.Context, q Question) (Answer, error) {
		asked.Store(&q)
		return Answer{Decision: rules.Allow}, nil
	}})
	_, port, _ := net.SplitHostPort(s)
	n, err := strconv.Atoi(port)
	rig.Must(t, err)
	conn := g.dial()
	say(t, conn, greeting+"\x05\x01\x00"+address("name.test", n)+string(hello(t, "other.test")))
	back, err := io.ReadAll(conn)
	rig.Is(t, err == nil && len(back) > 12, false, "the destination has answered a greeting to another: %x", back)
	rig.Is(t, *asked.Load(), Question{Protocol: rules.SOCKS5TCP, Host: "name.test", Port: uint16(n)}, "asked")
	g.want("domain allow decider not_allowed socks5_tcp name.test:"+port+"  *", "non_domain deny baseline_policy policy_denied socks5_tcp name.test:"+port+" ")
}

// datagrams returns what makes sockets for datagrams, and counts them.
func datagrams(made *atomic.Int32) func() (net.PacketConn, error) {
	return func() (net.PacketConn, error) {
		if made != nil {
			made.Add(1)
		}
		return net.ListenPacket("udp", "127.0.0.1:0")
	}
}

// udpEcho starts a destination that sends each datagram back, with where it came from.
func udpEcho(t testing.TB) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	rig.Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, maxDatagram)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn.LocalAddr().String()
}

// An associated is the command's side of an association.
type associated struct {
	tcp   net.Conn
	udp   *net.UDPConn
	relay netip.AddrPort
}

// associate asks for an association from a socket of its own. With a port of -1 the request
// says where the datagrams will come from.
func associate(t testing.TB, g *proxied, port int) *associated {
	t.Helper()
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	rig.Must(t, err)
	t.Cleanup(func() { _ = udp.Close() })
	_ = udp.SetDeadline(time.Now().Add(2 * time.Minute))
	host := "0.0.0.0"
	if port < 0 {
		host, port = "127.0.0.1", udp.LocalAddr().(*net.UDPAddr).Port
	}
	a := &associated{tcp: g.dial(), udp: udp}
	say(t, a.tcp, greeting+"\x05\x03\x00"+address(host, port))
	var back [5]byte
	if _, err := io.ReadFull(a.tcp, back[:]); err != nil || string(back[:]) != "\x05\x00\x05\x00\x00" {
		t.Fatalf("%x, %v", back, err)
	}
	text, at, err := readAddress(a.tcp)
	rig.Must(t, err)
	a.relay = netip.AddrPortFrom(netip.MustParseAddr(text), at)
	return a
}

func (a *associated) send(t testing.TB, to, data string) {
	t.Helper()
	a.write(t, a.udp, "\x00\x00\x00"+place(t, to)+data)
}

// write sends what may be a datagram from a socket.
func (a *associated) write(t testing.TB, from *net.UDPConn, text string) {
	t.Helper()
	_, err := from.WriteToUDPAddrPort([]byte(text), a.relay)
	rig.Must(t, err)
}

// receives waits for the next datagram that comes back.
func (a *associated) receives(t testing.TB, data string) {
	t.Helper()
	_, back := a.receive(t)
	rig.Is(t, back, data, "a datagram")
}

// receive returns the next datagram that comes back.
func (a *associated) receive(t testing.TB) (from, data string) {
	t.Helper()
	b := make([]byte, 2*maxDatagram)
	n, at, err := a.udp.ReadFromUDPAddrPort(b)
	rig.Must(t, err)
	rig.Is(t, at, a.relay, "a datagram comes from")
	to, rest, ok := parseDatagram(b[:n])
	if !ok {
		t.Fatalf("%x", b[:n])
	}
	return net.JoinHostPort(to.host, strconv.Itoa(int(to.port))), string(rest)
}

// ends waits until the proxy has ended the association.
func (a *associated) ends(t testing.TB) {
	t.Helper()
	back, err := io.ReadAll(a.tcp)
	rig.Is(t, len(back) > 0 || os.IsTimeout(err), false, "%x, %v: it goes on", back, err)
}

// TestDatagrams: datagrams go to several destinations and come back, whatever the command says
// of where it sends from, and each destination has one verdict (leak L4).
func TestDatagrams(t *testing.T) {
	t.Parallel()
	one, two := udpEcho(t), udpEcho(t)
	_, port, _ := net.SplitHostPort(two)
	for _, said := range []int{0, -1} {
		var made atomic.Int32
		r := allow("127.0.0.1", "name.test")
		r.Local = true
		d := loopback(t)
		g := socks(t, r, Config{Datagrams: datagrams(&made), Resolver: d.resolver})
		a := associate(t, g, said)
		for i := range 3 {
			for _, to := range []string{one, "name.test:" + port} {
				text := strings.Repeat("x", i*1000) + to
				a.send(t, to, text)
				from, back := a.receive(t)
				rig.Is(t, from, strings.Replace(to, "name.test", "127.0.0.1", 1), "%.30q came back from", text)
				rig.Is(t, back, text, "a datagram")
			}
		}
		large := strings.Repeat("y", 60_000)
		a.send(t, one, large)
		a.receives(t, large)
		say(t, a.tcp, "whatever")
		a.send(t, one, "")
		a.receives(t, "")
		g.want("domain allow baseline_policy allow socks5_udp "+one+" ", "domain allow baseline_policy allow socks5_udp name.test:"+port+" ")
		rig.Is(t, len(d.questions()), 2, "questions to the name server")
		rig.Is(t, made.Load(), 1, "sockets")
		_ = a.tcp.Close()
		rig.Check(t, g.Close())
	}
}

// TestDatagramsRefused: a refused destination has its verdict, and ends the association.
func TestDatagramsRefused(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"other.test:53": "domain deny baseline_policy not_allowed socks5_udp other.test:53 ",
		"10.0.0.1:53":   "domain deny baseline_policy not_allowed_local socks5_udp 10.0.0.1:53 ",
		"[fe80::1]:53":  "domain deny baseline_policy not_allowed_local socks5_udp [fe80::1]:53 ",
	} {
		g := socks(t, allow("127.0.0.1"), Config{Datagrams: datagrams(nil)})
		a := associate(t, g, 0)
		a.send(t, to, "x")
		a.ends(t)
		g.want(want)
	}
}

// TestDatagramsPinned: only the first source is the command; fragments and what is no datagram
// are dropped; and only the destination is heard.
func TestDatagramsPinned(t *testing.T) {
	t.Parallel()
	echo := udpEcho(t)
	g := socks(t, allow("127.0.0.1"), Config{Datagrams: datagrams(nil)})
	a := associate(t, g, -1)
	stranger, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	rig.Must(t, err)
	defer stranger.Close()
	a.write(t, stranger, "\x00\x00\x00"+place(t, echo)+"stranger")
	for _, text := range []string{"", "\x00", "\x00\x00\x00", "\x00\x00\x01" + place(t, echo) + "fragment", "\x00\x01\x00" + place(t, echo) + "x", "\x00\x00\x00\x07xxxx", "\x00\x00\x00\x03\x03a b\x00\x35x", "\x00\x00\x00\x01\x7f\x00"} {
		a.write(t, a.udp, text)
	}
	a.send(t, echo, "mine")
	a.receives(t, "mine")
	a.write(t, stranger, "\x00\x00\x00"+place(t, echo)+"stranger")
	a.send(t, echo, "again")
	a.receives(t, "again")
	g.want("domain allow baseline_policy allow socks5_udp " + echo + " ")
}

// TestDatagramsBounded: of too many destinations the last ones get nothing until others have
// been quiet for some time, and so do too many associations.
func TestDatagramsBounded(t *testing.T) {
	t.Parallel()
	g := socks(t, allow("127.0.0.1"), Config{Datagrams: datagrams(nil)})
	g.hurry(timing{flow: time.Hour})
	a := associate(t, g, 0)
	var echoes []string
	for range maxFlows + 1 {
		echoes = append(echoes, udpEcho(t))
	}
	for _, echo := range echoes[:maxFlows] {
		a.send(t, echo, echo)
		a.receives(t, echo)
	}
	a.send(t, echoes[maxFlows], "too many")
	a.send(t, echoes[0], "first")
	a.receives(t, "first")
	rig.Is(t, len(g.reports(maxFlows)), maxFlows, "reports")
	for range maxAssociations - 1 {
		associate(t, g, 0)
	}
	conn := g.dial()
	say(t, conn, greeting+"\x05\x03\x00"+address("0.0.0.0", 0))
	rig.Is(t, string(rig.Value(io.ReadAll(conn)))[:4], "\x05\x00\x05\x01", "one too many")

	quiet := socks(t, allow("127.0.0.1"), Config{Datagrams: datagrams(nil)})
	quiet.hurry(timing{flow: time.Nanosecond})
	b := associate(t, quiet, 0)
	for len(quiet.reports(0)) < 2 { // the first after a flow has ended is judged again
		b.send(t, echoes[0], "x")
	}
}

// TestDatagramsNowhere: what is sent to where no way leads is lost, with one verdict.
func TestDatagramsNowhere(t *testing.T) {
	t.Parallel()
	echo := udpEcho(t)
	r := allow("127.0.0.1", "nowhere.test", "255.255.255.255")
	r.Local = true
	d := newDNS(t, func(string, bool, int) []string { return nil })
	g := socks(t, r, Config{Datagrams: datagrams(nil), Resolver: d.resolver})
	g.hurry(timing{flow: time.Hour})
	a := associate(t, g, 0)
	for range 3 {
		a.send(t, "nowhere.test:53", "x")
		a.send(t, "255.255.255.255:53", "x")
	}
	a.send(t, echo, "back")
	a.receives(t, "back")
	g.want("domain allow baseline_policy allow socks5_udp nowhere.test:53 ", "domain allow baseline_policy allow socks5_udp 255.255.255.255:53 ", "domain allow baseline_policy allow socks5_udp "+echo+" ")
	rig.Is(t, len(d.questions()), 2, "questions to the name server")
	g.SetPolicy(policyOf(t, "allow=*, deny=GET 127.0.0.1/**"))
	a.ends(t)
	rig.Is(t, g.reports(4)[3].Reason, "mitm_required", "what the new policy says of a destination")
}

// TestDatagramsEnd: an association ends with the command's connection, also while somebody is
// asked about a destination.
func TestDatagramsEnd(t *testing.T) {
	t.Parallel()
	asked, over := make(chan struct{}), make(chan struct{})
	g := socks(t, rules.Rules{}, Config{Datagrams: datagrams(nil), Decide: func(ctx context.Context, _ Question) (Answer, error) {
		close(asked)
		<-ctx.Done()
		close(over)
		return Answer{}, ctx.Err()
	}})
	a := associate(t, g, 0)
	a.send(t, "8.8.8.8:53", "x")
	<-asked
	_ = a.tcp.Close()
	<-over
	g.want("domain deny decider not_allowed socks5_udp 8.8.8.8:53 ")
}

// FuzzSOCKS: no bytes make the parsers fail or read past what there is, and an address that is
// read is written as it was.
func FuzzSOCKS(f *testing.F) {
	for _, seed := range []string{"", greeting, "\x05\x01\x00" + address("d.test", 80), "\x05\x03\x00" + address("::1", 0), "\x05\x01\x00\x03\x00\x00\x00", "\x00\x00\x00" + address("1.2.3.4", 5) + "data"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := readGreeting(bytes.NewReader(b)); err == nil && (len(b) < 3 || b[0] != socksVersion || !slices.Contains(b[2:], methodNone)) {
			t.Errorf("%x is a greeting", b)
		}
		if command, host, port, err := readSOCKS(bytes.NewReader(b)); err == nil {
			kind := b[3]
			if again := string([]byte{socksVersion, command, 0}) + address(host, int(port)); kind != typeName && !bytes.HasPrefix(b, []byte(again)) {
				t.Errorf("%x is %q", b, again)
			}
		}
		if to, data, ok := parseDatagram(b); ok {
			if host, err := rules.Host(to.host); err != nil || host != to.host || !bytes.HasSuffix(b, data) {
				t.Errorf("%x goes to %+v with %x", b, to, data)
			}
		}
	})
}
