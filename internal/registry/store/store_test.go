package store

import (
	"context"
	"crypto/mlkem"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// soon is how long a test waits for what must happen, on however busy a machine.
const soon = 3 * time.Minute

// openTestStore opens a store on an embedded server. Others can be opened on the
// same server with openBeside.
func openTestStore(t testing.TB) (st *Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	return openWith(t, Config{Dir: dir}), dir
}

// openBeside opens a store on the same NATS server, as another process does.
func openBeside(t testing.TB, dir string) *Store {
	t.Helper()
	return openWith(t, Config{Dir: dir, Shared: true})
}

// openWith opens a store until the test ends.
func openWith(t testing.TB, cfg Config) *Store {
	t.Helper()
	cfg.Timeout = soon
	st := rig.Value(Open(t.Context(), cfg))
	t.Cleanup(func() { rig.Check(t, st.Close()) })
	return st
}

// testKey makes a key as an executor or harness has it.
func testKey(t testing.TB) *wire.PublicKey {
	t.Helper()
	secret := rig.Value(mlkem.GenerateKey768())
	key := &wire.PublicKey{Suite: wire.KeySuite, X25519: make([]byte, 32), MLKEM768: secret.EncapsulationKey().Bytes()}
	rand.Read(key.X25519)
	return key
}

func TestStoreFolder(t *testing.T) {
	t.Parallel()
	_, dir := openTestStore(t)
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, besideFile): 0o600, filepath.Join(dir, lockFile): 0o600} {
		info := rig.Value(os.Stat(path))
		rig.Is(t, info.Mode().Perm(), want, "%s has mode", path)
	}
	rig.Is(t, rig.Err(Open(t.Context(), Config{Dir: dir})), errInUse, "a second store in the folder")
	for _, cfg := range []Config{{}, {Dir: dir, URL: "nats://127.0.0.1:1"}} {
		rig.Is(t, rig.Err(Open(t.Context(), cfg)) == nil, false, "%+v is accepted", cfg)
	}
}

// TestStoreIsPrivate: other users of the machine reach neither a port nor the
// socket, whatever the mode of the folder.
func TestStoreIsPrivate(t *testing.T) {
	t.Parallel()
	top, err := os.MkdirTemp("/tmp", "registry") // the address of a socket is short, and others may enter
	rig.Must(t, err)
	t.Cleanup(func() { rig.Check(t, os.RemoveAll(top)) })
	dir := filepath.Join(top, "data")
	st := openWith(t, Config{Dir: dir})
	rig.Is(t, st.embedded.server.Addr() == nil, true, "the embedded server listens nowhere")
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	rig.Must(t, os.Chmod(top, 0o777), os.Chmod(dir, 0o777))
	path := filepath.Join(dir, besideFile)
	dial := func(uid uint32) error {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDialSocket$")
		cmd.Env = append(os.Environ(), dialSocketVariable+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		t.Logf("%d: %s", uid, out)
		return err
	}
	rig.Check(t, dial(0))
	rig.Is(t, dial(65534) == nil, false, "another user can connect")
}

const dialSocketVariable = "REGISTRY_TEST_SOCKET"

// TestDialSocket runs only in the processes that TestStoreIsPrivate starts, each as
// another user.
func TestDialSocket(t *testing.T) {
	path := os.Getenv(dialSocketVariable)
	if path == "" {
		t.Skip("for another test")
	}
	conn := rig.Value(net.Dial("unix", path))
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(soon))
	greeting := make([]byte, 4)
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "INFO" {
		t.Fatalf("%q, %v", greeting, err)
	}
}

// TestStoreLongPath: a folder whose path is longer than the address of a socket can be shared.
func TestStoreLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 150))
	t.Cleanup(func() {
		rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, besideFile))), fs.ErrNotExist, "the socket is left behind")
	})
	openWith(t, Config{Dir: dir})
	if _, _, err := openBeside(t, dir).CreateKey(t.Context(), Key{Role: "executor", Environments: "*"}); err != nil {
		t.Fatal(err)
	}
}

// TestStoreErrorHidesURL: a URL may have a password in it.
func TestStoreErrorHidesURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"nats://me:hunter2@127.0.0.1:1", "nats://me:hunter2@127.0.0.1:port", "nats://me:hunter2@[", "nats://me:hunter2%zz@h",
		"nats://me:hunter2,127.0.0.1:1", "nats://me:hunter2,x@127.0.0.1:1", "nats://me:1,hunter2@127.0.0.1:1", "nats://me:1,hunter2,2@127.0.0.1:1"} {
		_, err := Open(t.Context(), Config{URL: url})
		if err == nil {
			t.Fatalf("%s is accepted", url)
		}
		rig.Is(t, strings.Contains(err.Error(), "hunter2"), false, "the error tells the password: %v", err)
	}
}

// TestRedacted: of the URLs of NATS servers the scheme and host are told, where it is clear
// what is the host.
func TestRedacted(t *testing.T) {
	t.Parallel()
	for servers, want := range map[string]string{
		"nats://a:4222": "nats://a:4222",
		"a:4222, b":     "a:4222,b",
		"nats://me:hunter2@a:1,nats://me:hunter2@b": "nats://a:1,nats://b",
		"tls://me:hunter2@[::1]:1,b:2":              "tls://[::1]:1,b:2",
		"nats://hunter2@a":                          "nats://a",
		"nats://me:hunter2@[":                       "server 1 of the list",
		"nats://me:hunter2,127.0.0.1:1":             "server 1 of the list,127.0.0.1:1",
		"nats://me:hunter2,x@a":                     "server 1 of the list,a",
		"nats://me:2,hunter2,3@a,nats://b":          "server 1 of the list,server 2 of the list,a,nats://b",
		"nats://me:hunter2@hunter2,x@a":             "server 1 of the list,a",
		"nats://me:1/hunter2@a":                     "server 1 of the list",
		"nats://me:1?hunter2@a":                     "server 1 of the list",
		"nats://me:1#hunter2@a":                     "server 1 of the list",
		"nats://a?password=hunter2":                 "nats://a",
		"nats://me:1,hunter2://x@a":                 "server 1 of the list,server 2 of the list",
		"":                                          "server 1 of the list",
	} {
		rig.Is(t, redacted(servers), want, "%q", servers)
	}
	failed := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "hunter2"}}
	if cause, _ := connectCause(failed); strings.Contains(cause.Error(), "hunter2") {
		t.Errorf("a name that is not found is told: %v", cause)
	}
}

// TestStoreReopen: what an operator and executors have stored outlives the process;
// presences do not.
func TestStoreReopen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	st := rig.Value(Open(t.Context(), Config{Dir: dir}))
	key := rig.Value(st.SharedKey(t.Context()))
	_, created, err := st.CreateKey(t.Context(), Key{Role: "executor", Environments: "*"})
	rig.Must(t, err)
	executorKey := testKey(t)
	reg, _, err := st.Register(t.Context(), "env", executorKey, "key:x", always, never)
	rig.Must(t, err)
	rig.Must(t, st.Announce(t.Context(), "node"))
	rig.Value(st.SetOnline(t.Context(), Presence{EnvironmentID: "env", RegistrationID: reg.ID, Node: "node"}, Seen{}))
	rig.Must(t, st.Close())

	if st, err = Open(t.Context(), Config{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	again, err := st.SharedKey(t.Context())
	rig.Must(t, err)
	rig.Is(t, string(again), string(key), "the shared key of another start")
	keys, err := st.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].ID != created.ID {
		t.Errorf("keys are %+v, %v", keys, err)
	}
	if _, online, err := st.Online(t.Context(), "env"); online || err != nil {
		t.Errorf("online: %v, %v", online, err)
	}
	same, conflict, err := st.Register(t.Context(), "env", executorKey, "key:x", always, never)
	if err != nil || conflict || same.ID != reg.ID {
		t.Errorf("the same key got %q, %v, %v, want %q", same.ID, conflict, err, reg.ID)
	}
}

// TestSharedKeyIsOne: processes that start at once all get the same shared key.
func TestSharedKeyIsOne(t *testing.T) {
	t.Parallel()
	one, dir := openTestStore(t)
	two := openBeside(t, dir)
	keys := make([]string, 8)
	var wg sync.WaitGroup
	for i := range keys {
		st := one
		if i%2 == 1 {
			st = two
		}
		wg.Go(func() {
			key, err := st.SharedKey(t.Context())
			rig.Check(t, err)
			keys[i] = string(key)
		})
	}
	wg.Wait()
	for _, key := range keys {
		if key != keys[0] || len(key) != 32 {
			t.Fatalf("keys are %q", keys)
		}
	}
}

// TestRegisterRace: executors with keys of their own register and go online at once. In
// the end one of them is online, and has the environment's registration.
func TestRegisterRace(t *testing.T) {
	t.Parallel()
	one, dir := openTestStore(t)
	stores := []*Store{one, openBeside(t, dir)}
	ctx := t.Context()
	rig.Must(t, one.Announce(ctx, "n"))
	var mu sync.Mutex
	won := make(map[string]bool)
	var wg sync.WaitGroup
	for i := range 4 {
		st, key := stores[i%2], testKey(t)
		wg.Go(func() {
			for range 20 {
				reg, conflict, err := st.Register(ctx, "env", key, "key:x", always, never)
				if errors.Is(err, ErrUnavailable) || conflict {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				_, err = st.SetOnline(ctx, Presence{EnvironmentID: "env", RegistrationID: reg.ID, Node: "n"}, Seen{})
				if err == nil {
					mu.Lock()
					won[reg.ID] = true
					mu.Unlock()
					return
				}
				if !errors.Is(err, errSuperseded) && !errors.Is(err, ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	rig.Is(t, max(len(won), 1), 1, "executors online at once, at most")
	reg, found, err := one.Registration(ctx, "env")
	if err != nil || !found {
		t.Fatalf("registration: %v, %v", found, err)
	}
	for id := range won {
		rig.Is(t, id, reg.ID, "the registration that is online")
	}
}

// TestDeadNode: an executor of a server that has died is not online any more, and a sweep
// removes its presence.
func TestDeadNode(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	ctx := t.Context()
	for _, node := range []string{"dead", "alive"} {
		rig.Must(t, st.Announce(ctx, node))
		reg, _, err := st.Register(ctx, "env-"+node, testKey(t), "key:x", always, never)
		rig.Must(t, err)
		rig.Value(st.SetOnline(ctx, Presence{EnvironmentID: "env-" + node, RegistrationID: reg.ID, Node: node}, Seen{}))
	}
	if online, err := st.presences(ctx); err != nil || len(online) != 2 {
		t.Fatalf("online are %+v, %v", online, err)
	}
	rig.Must(t, st.Withdraw(ctx, "dead"))
	online, err := st.presences(ctx)
	if err != nil || len(online) != 1 || online[0].EnvironmentID != "env-alive" {
		t.Errorf("online are %+v, %v", online, err)
	}
	if _, online, err := st.Online(ctx, "env-dead"); online || err != nil {
		t.Errorf("online %v, %v at a dead server", online, err)
	}
	if _, conflict, err := st.Register(ctx, "env-dead", testKey(t), "key:x", always, never); conflict || err != nil {
		t.Errorf("conflict %v, %v with an executor of a dead server", conflict, err)
	}
	rig.Must(t, st.sweep(ctx, "alive"))
	left, err := all[Presence](ctx, st.presence)
	rig.Must(t, err)
	rig.Is(t, len(left), 1, "registrations after the sweep: %+v", left)
}

// TestSweepKeepsRegistration: an executor that stays online for longer than
// registrationTTL stays registered.
func TestSweepKeepsRegistration(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	ctx := t.Context()
	rig.Must(t, st.Announce(ctx, "n"))
	reg, _, err := st.Register(ctx, "env", testKey(t), "key:x", always, never)
	rig.Must(t, err)
	rig.Value(st.SetOnline(ctx, Presence{EnvironmentID: "env", RegistrationID: reg.ID, Node: "n"}, Seen{}))
	before := rig.Value(st.registrations.Get(ctx, "env"))
	rig.Must(t, st.sweep(ctx, "n"))
	after := rig.Value(st.registrations.Get(ctx, "env"))
	if after.Revision() == before.Revision() || string(after.Value()) != string(before.Value()) {
		t.Errorf("revision %d, then %d", before.Revision(), after.Revision())
	}
}

// TestMarkersPass: environments that come and go leave nothing behind in the buckets for
// longer than the times to live.
func TestMarkersPass(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	for _, tt := range []struct {
		kv        jetstream.KeyValue
		ttl, mark time.Duration
	}{
		{st.keys, 0, 0},
		{st.identities, 0, markerTTL},
		{st.registrations, registrationTTL, 0},
		{st.presence, 0, markerTTL},
		{st.nodes, nodeTTL, 0},
		{st.secrets, 0, 0},
		{st.replay, ReplayTTL, 0},
	} {
		status := rig.Value(tt.kv.Status(t.Context()))
		if status.TTL() != tt.ttl || status.LimitMarkerTTL() != tt.mark {
			t.Errorf("%s: TTL %v and markers %v, want %v and %v", status.Bucket(), status.TTL(), status.LimitMarkerTTL(), tt.ttl, tt.mark)
		}
	}
}

func BenchmarkStoreGet(b *testing.B) {
	st, _ := openTestStore(b)
	if _, _, err := st.Register(b.Context(), "env", testKey(b), "key:x", always, never); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, found, err := st.Registration(b.Context(), "env"); !found || err != nil {
			b.Fatal(found, err)
		}
	}
}

// TestStoreKeepsRoom: the buckets that executors can fill leave half of the storage to
// the others, such as that of keys.
func TestStoreKeepsRoom(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	var filled int64
	for _, kv := range []jetstream.KeyValue{st.registrations, st.replay} {
		status := rig.Value(kv.Status(t.Context()))
		limit := status.Config().MaxBytes
		if limit <= 0 {
			t.Errorf("%s has no limit", kv.Bucket())
		}
		filled += limit
	}
	rig.Is(t, max(filled, embeddedStorage/2), embeddedStorage/2, "bytes that can be filled, at most")
}

// TestStoreAfterKill: a folder can be opened and shared in which a killed process has left
// its socket.
func TestStoreAfterKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rig.Must(t, withSocketPath(dir, func(path string) error {
		l := rig.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))
		l.SetUnlinkOnClose(false)
		return l.Close()
	}))
	openWith(t, Config{Dir: dir})
	rig.Check(t, rig.Err(openBeside(t, dir).SharedKey(t.Context())))
}

func always() bool { return true }

func never(string) bool { return false }

// TestRestartEnds: the time for starting the embedded server anew is bounded.
func TestRestartEnds(t *testing.T) {
	t.Parallel()
	bounded := false
	e := rig.Value(startEmbedded(t.TempDir(), slog.New(slog.DiscardHandler), func(ctx context.Context, _ *nats.Conn) error {
		_, bounded = ctx.Deadline()
		return nil
	}))
	defer e.close()
	rig.Must(t, e.restart(t.Context()))
	rig.Is(t, bounded, true, "what is made then has a deadline")
}

// TestHealthWhileOpening: a stream that is just being made does not count as one that cannot be
// written, which would end the embedded server.
func TestHealthWhileOpening(t *testing.T) {
	t.Parallel()
	st, dir := openTestStore(t)
	streams := filepath.Join(dir, "nats", "jetstream", "$G", "streams")
	if made, err := os.ReadDir(streams); err != nil || len(made) == 0 {
		t.Fatalf("it has %d streams, %v", len(made), err)
	}
	rig.Must(t, os.Mkdir(filepath.Join(streams, "KV_just_made"), 0o700))
	rig.Is(t, st.embedded.server.Healthz(nil).Error == "", false, "NATS does not miss the stream")
	rig.Check(t, writeError(st.embedded.server))
}
