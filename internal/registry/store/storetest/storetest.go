// Package storetest opens stores for the tests of packages that use a store: on an embedded
// server, beside another process, and on a NATS server of the test. It also reads and
// writes their contents. Failures end the test. [Fake] is for tests that cannot have NATS, and
// [TestStore] tests the behaviour that a Fake shares with a store.
package storetest

import (
	"crypto/mlkem"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/wire"
)

// soon is how long a NATS server may take to start, even on a busy machine.
const soon = 3 * time.Minute

// timeout is the timeout of an exchange with NATS. On a busy machine most exchanges take less.
// Without NATS an exchange that has begun takes the whole timeout.
const timeout = 30 * time.Second

// Open opens a store on an embedded server, in a folder of its own, until the test
// ends.
func Open(t testing.TB) (st *store.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	return open(t, store.Config{Dir: dir}), dir
}

// Beside opens the store of a folder that is open already, as another process does, until
// the test ends.
func Beside(t testing.TB, dir string) *store.Store {
	t.Helper()
	return open(t, store.Config{Dir: dir, Shared: true})
}

// At opens a store on NATS servers, see [NATS], until the test ends.
func At(t testing.TB, url string) *store.Store {
	t.Helper()
	return open(t, store.Config{URL: url, Wait: true})
}

func open(t testing.TB, cfg store.Config) *store.Store {
	t.Helper()
	cfg.Timeout = timeout
	st, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// NATS starts a NATS server with its files in dir. at is the address of an earlier server, or
// nil for a new address. No other program gets the address while the server is stopped. The
// caller ends the server with [Stop].
func NATS(t testing.TB, dir string, at net.Addr) *server.Server {
	t.Helper()
	host, port := fmt.Sprintf("127.%d.%d.%d", 1+mathrand.IntN(255), mathrand.IntN(256), 1+mathrand.IntN(254)), server.RANDOM_PORT
	if before, ok := at.(*net.TCPAddr); ok {
		host, port = before.IP.String(), before.Port
	}
	s, err := server.NewServer(&server.Options{Host: host, Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(soon) {
		t.Fatal("NATS does not start")
	}
	return s
}

// Stop ends a server and waits for it.
func Stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// Connect connects to NATS until the test ends, to see the writes of stores or to write like
// a store. where is a URL or, for an embedded server, the absolute path of its folder.
func Connect(t testing.TB, where string) *nats.Conn {
	t.Helper()
	options := []nats.Option{nats.Timeout(soon)}
	if filepath.IsAbs(where) {
		options = append(options, nats.SetCustomDialer(folder(where)))
		where = nats.DefaultURL
	}
	nc, err := nats.Connect(where, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Subscribe subscribes to the messages on a subject from now on, from all connections.
func Subscribe(t testing.TB, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil { // after it the server has the subscription
		t.Fatal(err)
	}
	return sub
}

// folder dials the socket of the embedded server that has its files in the folder.
type folder string

func (f folder) Dial(_, _ string) (net.Conn, error) {
	dir, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// The whole path may be too long for an address.
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/nats.sock", dir.Fd()))
}

// Bucket returns one of the buckets in which a store keeps its state. name is without
// the prefix execagent_.
func Bucket(t testing.TB, nc *nats.Conn, name string) jetstream.KeyValue {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(soon))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), "execagent_"+name)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// Largest makes a bucket refuse values that are larger than bytes; -1: it refuses none.
func Largest(t testing.TB, nc *nats.Conn, name string, bytes int32) {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(soon))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_execagent_"+name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = bytes
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// Keys returns the keys that have a value in a bucket.
func Keys(t testing.TB, kv jetstream.KeyValue) []string {
	t.Helper()
	keys, err := kv.Keys(t.Context())
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		t.Fatal(err)
	}
	return keys
}

// Key makes a public key of an executor or a harness.
func Key(t testing.TB) *wire.PublicKey {
	t.Helper()
	secret, err := mlkem.GenerateKey768()
	if err != nil {
		t.Fatal(err)
	}
	key := &wire.PublicKey{Suite: wire.KeySuite, X25519: make([]byte, wire.X25519KeySize), MLKEM768: secret.EncapsulationKey().Bytes()}
	rand.Read(key.X25519)
	return key
}
