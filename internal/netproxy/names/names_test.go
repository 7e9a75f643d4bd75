package names

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// ask returns a question for a name with letters as they are.
func ask(name string, kind uint16) []byte {
	b := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	b = append(b, wireName(name)...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, kind), classIN)
}

// said is what an answer says, in words.
func said(t *testing.T, question, answer []byte) string {
	t.Helper()
	if answer == nil {
		return "nothing"
	}
	rcode := answer[3] & 0xf
	count := binary.BigEndian.Uint16(answer[6:])
	if binary.BigEndian.Uint16(answer[4:]) == 1 {
		rig.Is(t, bytes.HasPrefix(answer[sizeHeader:], question[sizeHeader:]), true, "the question comes back as it was")
	}
	text := fmt.Sprintf("rcode %d, %d records", rcode, count)
	if count == 1 {
		data := answer[len(question)+12:]
		if addr, ok := netip.AddrFromSlice(data); ok {
			if Invented(addr) {
				return text + ", invented"
			}
			return text + ", " + addr.String()
		}
		return text + ", " + string(data)
	}
	return text
}

// questions has cases of the tests below.
const questions = "testdata/questions.txt"

func TestAnswer(t *testing.T) {
	t.Parallel()
	n := New(Secret{1}, Search{})
	long := strings.Repeat("a.", 126) + "a"
	kinds := map[string]uint16{"A": typeA, "AAAA": typeAAAA, "PTR": typePTR, "TXT": 16, "HTTPS": 65, "ANY": 255}
	for _, row := range append(rig.Rows(t, questions, "answers", 3), []string{long, "A", "rcode 0, 1 records, invented"}) {
		question := ask(row[0], kinds[row[1]])
		rig.Is(t, said(t, question, n.Answer(t.Context(), question)), row[2], "%s %s", row[1], row[0])
	}
	v4 := n.byName["example.org"].v4.As4()
	question := ask(fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", v4[3], v4[2], v4[1], v4[0]), typePTR)
	rig.Is(t, said(t, question, n.Answer(t.Context(), question)), "rcode 0, 1 records, \x07example\x03org\x00", "PTR, IPv4")
	var digits []string
	v6 := n.byName["example.org"].v6.As16()
	for i := 15; i >= 0; i-- {
		digits = append(digits, fmt.Sprintf("%x.%x", v6[i]&0xf, v6[i]>>4))
	}
	question = ask(strings.Join(digits, ".")+".ip6.arpa", typePTR)
	rig.Is(t, said(t, question, n.Answer(t.Context(), question)), "rcode 0, 1 records, \x07example\x03org\x00", "PTR, IPv6")
}

// TestMalformed: a message that is no question gets an error, if it has an id.
func TestMalformed(t *testing.T) {
	t.Parallel()
	n := New(Secret{}, Search{})
	good := ask("example.org", typeA)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	for name, tt := range map[string]struct {
		question []byte
		want     string
	}{
		"empty":          {nil, "nothing"},
		"no id":          {[]byte{1}, "nothing"},
		"id only":        {good[:2], "rcode 1, 0 records"},
		"an answer":      {change(2, 0x81), "nothing"},
		"opcode":         {change(2, 0x29), "rcode 4, 0 records"},
		"two questions":  {change(5, 2), "rcode 1, 0 records"},
		"no class":       {good[:len(good)-1], "rcode 1, 0 records"},
		"a pointer":      {change(sizeHeader, 0xc0), "rcode 1, 0 records"},
		"a long label":   {change(sizeHeader, 63), "rcode 1, 0 records"},
		"another class":  {change(len(good)-1, 3), "rcode 0, 0 records"},
		"a dot in label": {change(sizeHeader+1, '.'), "rcode 3, 0 records"},
	} {
		rig.Is(t, said(t, tt.question, n.Answer(t.Context(), tt.question)), tt.want, "%s", name)
	}
}

// TestSameEverywhere: a name has the same address in all commands of an agent, and another in
// another agent. A command knows only its own names.
func TestSameEverywhere(t *testing.T) {
	t.Parallel()
	a, b, other := New(Secret{1}, Search{}), New(Secret{1}, Search{}), New(Secret{2}, Search{})
	b.invent("earlier.example")
	one, _ := a.invent("example.org")
	two, _ := b.invent("example.org")
	rig.Is(t, two, one, "in another command")
	three, _ := other.invent("example.org")
	rig.Is(t, three != one, true, "another agent has another address")
	rig.Is(t, a.Name(one.v4), "example.org", "the name of the address")
	rig.Is(t, a.Name(netip.AddrFrom16(one.v4.As16())), "example.org", "the name of the mapped address")
	rig.Is(t, a.Name(one.v6), "example.org", "the name of the IPv6 address")
	earlier, _ := b.invent("earlier.example")
	rig.Is(t, a.Name(earlier.v4), "", "a name of another command")
}

// TestCollision: a name whose address is taken gets the next one.
func TestCollision(t *testing.T) {
	t.Parallel()
	n := New(Secret{}, Search{})
	last := uint64(254*512 - 1)
	rig.Is(t, [5]netip.Addr{at4(0), at4(253), at4(254), at4(last), at4(last + 1)},
		[5]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.254"), netip.MustParseAddr("198.18.1.1"),
			netip.MustParseAddr("198.19.255.254"), netip.MustParseAddr("198.18.0.1")}, "addresses by number")
	n.byAddr[at4(last)] = "taken.example"
	rig.Is(t, n.freeLocked(last, at4), at4(0), "the address after the last one is the first")
}

// TestBound: a command has at most so many names, and the older ones go on.
func TestBound(t *testing.T) {
	t.Parallel()
	n := New(Secret{}, Search{})
	for i := range maxNames {
		if _, ok := n.invent(fmt.Sprintf("n%d.example", i)); !ok {
			t.Fatal("too few names:", i)
		}
	}
	question := ask("one-more.example", typeA)
	rig.Is(t, said(t, question, n.Answer(t.Context(), question)), "rcode 2, 0 records", "one more name")
	question = ask("n7.example", typeA)
	rig.Is(t, said(t, question, n.Answer(t.Context(), question)), "rcode 0, 1 records, invented", "an older name")
	rig.Is(t, len(n.byAddr), 2*maxNames, "each name has two addresses of its own")
}

// TestSearch: a name below a domain of the search list has an address only if there is such a
// name. The list is that of a pod (ndots:5), whose libc tries all domains first.
func TestSearch(t *testing.T) {
	t.Parallel()
	var asked []string
	n := New(Secret{}, Search{
		Domains: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Exists: func(_ context.Context, name string) bool {
			asked = append(asked, name)
			return name == "cart.shop.svc.cluster.local"
		},
	})
	for _, row := range rig.Rows(t, questions, "search", 2) {
		question := ask(row[0], typeA)
		rig.Is(t, said(t, question, n.Answer(t.Context(), question)), row[1], "%s", row[0])
	}
	rig.Is(t, len(asked), 4, "names that were looked for")
}

// TestServer: every kind of socket answers, and Close ends all of them.
func TestServer(t *testing.T) {
	t.Parallel()
	for _, search := range []Search{{}, {Domains: []string{"example"}, Exists: func(context.Context, string) bool { return true }}} {
		s := NewServer(New(Secret{}, search))
		question := ask("www.example", typeA)
		read := func(conn net.Conn) string {
			b := make([]byte, 512)
			size := rig.Value(conn.Read(b))
			return said(t, question, b[:size])
		}
		udp := rig.Value(net.ListenPacket("udp4", "127.0.0.1:0"))
		s.Datagrams(udp)
		conn := rig.Value(net.Dial("udp4", udp.LocalAddr().String()))
		defer conn.Close()
		rig.Must(t, rig.Err(conn.Write(question)))
		rig.Is(t, read(conn), "rcode 0, 1 records, invented", "by a datagram")

		tcp := rig.Value(net.Listen("tcp4", "127.0.0.1:0"))
		s.Listen(tcp)
		conn = rig.Value(net.Dial("tcp4", tcp.Addr().String()))
		defer conn.Close()
		for range 2 {
			rig.Must(t, rig.Err(conn.Write(append([]byte{0, byte(len(question))}, question...))))
			rig.Must(t, rig.Err(io.ReadFull(conn, make([]byte, 2))))
			rig.Is(t, read(conn), "rcode 0, 1 records, invented", "by a connection")
		}
		s.Close()
		rig.Is(t, rig.Err(conn.Read(make([]byte, 1))) != nil, true, "the connection has ended")
		s.Close()
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(ask("example.org", typeA))
	f.Add(ask("4.3.18.198.in-addr.arpa", typePTR))
	f.Add(ask("localhost", typeAAAA))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, message []byte) {
		n := New(Secret{}, Search{})
		answer := n.Answer(t.Context(), message)
		if answer == nil {
			return
		}
		if len(answer) < sizeHeader || len(answer) > len(message)+sizeHeader+12+maxWireName {
			t.Fatalf("an answer of %d bytes to %d", len(answer), len(message))
		}
		rig.Is(t, [2]byte(answer), [2]byte(message), "the id")
		for name := range n.byName {
			if len(name) > 253 {
				t.Fatalf("a name of %d bytes", len(name))
			}
		}
	})
}
