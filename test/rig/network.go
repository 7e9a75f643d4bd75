package rig

import (
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// PublicAddress is where the servers of a test are that runs again by InNetwork. It is public, so that nothing but
// their names has to be allowed, and exists in a network namespace of the test alone.
const PublicAddress = "20.0.0.1"

// InNetwork runs a test once more, with a variable, in namespaces that have the address, and files in the place of
// others: file, its place, file, its place. The test is the root of a user namespace there.
func InNetwork(t T, test, variable string, files ...string) {
	t.Helper()
	const setup = `while [ "$1" != -- ]; do mount --bind "$1" "$2" && shift 2 || exit; done
PATH=$PATH:/usr/sbin; ip link set lo up && ip address add ` + PublicAddress + `/32 dev lo && shift && exec "$@"`
	argv := append([]string{"--map-root-user", "--net", "--mount", "--kill-child", "sh", "-c", setup, "sh"}, files...)
	inside := Leash(Command(t, "unshare", append(argv, "--", os.Args[0], "-test.v", "-test.run", "^"+test+"$")...))
	inside.Env = append(os.Environ(), variable, "E2E_PROGRAMS="+filepath.Dir(Agent(t)))
	if out, err := inside.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
}

// ServeNames is a name server for these names at PublicAddress. It returns a func that returns the names that it
// was asked for so far.
func ServeNames(t T, addrs map[string][4]byte) (asked func() map[string]bool) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", PublicAddress+":53")
	if err != nil {
		t.Fatalf("%v", err)
	}
	var mu sync.Mutex
	names := map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<10)
		for {
			n, from, err := conn.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var p dnsmessage.Parser
			h, err := p.Start(b[:max(n, 0)])
			if err != nil {
				continue
			}
			q, err := p.Question()
			if err != nil {
				continue
			}
			name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
			mu.Lock()
			names[name] = true
			mu.Unlock()
			m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
			if addr, ok := addrs[name]; !ok {
				m.RCode = dnsmessage.RCodeNameError
			} else if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: addr}}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(names)
	}
}
