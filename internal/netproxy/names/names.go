package names

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// maxNames bounds the names of one command. Further ones get SERVFAIL, and the older ones
// go on.
const maxNames = 8192

// The ranges of invented addresses. Neither is routed in the internet, and the rules treat
// both as local addresses.
var (
	range4 = netip.MustParsePrefix("198.18.0.0/15")            // for benchmarks (RFC 2544)
	range6 = netip.MustParsePrefix("fdc0:de00:6578:6563::/64") // unique local (RFC 4193)
)

// Invented reports whether an address is in the ranges of invented addresses.
func Invented(addr netip.Addr) bool {
	addr = addr.Unmap()
	return range4.Contains(addr) || range6.Contains(addr)
}

// A Secret makes the addresses of an agent differ from those of every other agent.
type Secret [sha256.Size]byte

// Names has the invented addresses of one command. Its methods may be called at once.
type Names struct {
	secret Secret
	search Search

	mu     sync.Mutex
	byName map[string]addresses
	byAddr map[netip.Addr]string
}

type addresses struct{ v4, v6 netip.Addr }

// New returns Names without a name.
func New(secret Secret, search Search) *Names {
	return &Names{secret: secret, search: search, byName: map[string]addresses{}, byAddr: map[netip.Addr]string{}}
}

// Name returns the name that an address was invented for; "" if the command has asked for
// no such name.
func (n *Names) Name(addr netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byAddr[addr.Unmap()]
}

// invent returns the addresses of a name in the form of [rules.Host]. ok is false if the
// command has too many names.
func (n *Names) invent(name string) (a addresses, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	if len(n.byName) >= maxNames {
		return a, false
	}
	name = strings.Clone(name) // the question that it is a part of can be collected
	mac := hmac.New(sha256.New, n.secret[:])
	mac.Write([]byte(name))
	sum := mac.Sum(nil)
	a.v4 = n.freeLocked(binary.BigEndian.Uint64(sum), at4)
	a.v6 = n.freeLocked(binary.BigEndian.Uint64(sum[8:]), at6)
	n.byName[name], n.byAddr[a.v4], n.byAddr[a.v6] = a, name, name
	return a, true
}

// freeLocked returns the first address at or after that number which no name has.
func (n *Names) freeLocked(number uint64, at func(uint64) netip.Addr) netip.Addr {
	for {
		addr := at(number)
		if _, taken := n.byAddr[addr]; !taken {
			return addr
		}
		number++
	}
}

// at4 returns an address of range4. It leaves out the addresses that end in 0 or 255,
// because some programs take them for networks and broadcasts.
func at4(number uint64) netip.Addr {
	const perBlock, blocks = 254, 512
	number %= perBlock * blocks
	b := range4.Addr().As4()
	block, last := number/perBlock, number%perBlock
	b[1] += byte(block >> 8)
	b[2], b[3] = byte(block), byte(last+1)
	return netip.AddrFrom4(b)
}

// at6 returns an address of range6.
func at6(number uint64) netip.Addr {
	b := range6.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], number)
	return netip.AddrFrom16(b)
}

// never reports whether no policy can allow a name, so that it has no address: what is no
// host, an address in the place of a name, and the domains that have no names in the DNS
// (RFC 6761, RFC 7686).
func never(name string) bool {
	host, err := rules.Host(name)
	if err != nil || host != name {
		return true
	}
	return rules.EndsInNumber(name) || isBelow(name, "invalid") || isBelow(name, "onion")
}

// isBelow reports whether a name is the domain or a name below it.
func isBelow(name, domain string) bool {
	rest, found := strings.CutSuffix(name, domain)
	return found && (rest == "" || strings.HasSuffix(rest, "."))
}
