package store

import (
	"context"
	"crypto/mlkem"
	"crypto/rand"
	"errors"
	"fmt"
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

// found is whether a call has found something, and its error.
func found[T any](_ T, found bool, err error) string { return fmt.Sprint(found, " ", err) }

func errorOf[A, B any](_ A, _ B, err error) error { return err }

func TestStoreFolder(t *testing.T) {
	t.Parallel()
	_, dir := openTestStore(t)
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, besideFile): 0o600, filepath.Join(dir, lockFile): 0o600} {
		rig.Is(t, rig.Value(os.Stat(path)).Mode().Perm(), want, "%s has mode", path)
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
	top := rig.Value(os.MkdirTemp("/tmp", "registry")) // the address of a socket is short, and others may enter
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
	rig.Must(t, rig.Err(io.ReadFull(conn, greeting)))
	rig.Is(t, string(greeting), "INFO", "the greeting")
}

// TestStoreLongPath: a folder whose path is longer than the address of a socket can be shared.
func TestStoreLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 150))
	t.Cleanup(func() {
		rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, besideFile))), fs.ErrNotExist, "the socket is left behind")
	})
	openWith(t, Config{Dir: dir})
	rig.Must(t, errorOf(openBeside(t, dir).CreateKey(t.Context(), Key{Role: "executor", Environments: "*"})))
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
	cause, _ := connectCause(failed)
	rig.Is(t, strings.Contains(cause.Error(), "hunter2"), false, "a name that is not found is told: %v", cause)
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

	st = rig.Value(Open(t.Context(), Config{Dir: dir}))
	defer st.Close()
	rig.Is(t, string(rig.Value(st.SharedKey(t.Context()))), string(key), "the shared key of another start")
	keys := rig.Value(st.Keys(t.Context()))
	rig.Is(t, len(keys), 1, "keys: %+v", keys)
	rig.Is(t, keys[0].ID, created.ID, "the id of the key")
	rig.Is(t, found(st.Online(t.Context(), "env")), "false <nil>", "online")
	same, conflict, err := st.Register(t.Context(), "env", executorKey, "key:x", always, never)
	rig.Is(t, fmt.Sprint(same.ID, " ", conflict, " ", err), reg.ID+" false <nil>", "registration, conflict of the same key")
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
		rig.Is(t, key, keys[0], "a shared key")
		rig.Is(t, len(key), 32, "bytes of a shared key")
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
	rig.Is(t, len(won) <= 1, true, "executors online at once: %v, at most %v", len(won), 1)
	reg, ok, err := one.Registration(ctx, "env")
	rig.Must(t, err)
	rig.Is(t, ok, true, "there is a registration")
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
	rig.Is(t, len(rig.Value(st.presences(ctx))), 2, "presences")
	rig.Must(t, st.Withdraw(ctx, "dead"))
	online := rig.Value(st.presences(ctx))
	rig.Is(t, len(online), 1, "presences: %+v", online)
	rig.Is(t, online[0].EnvironmentID, "env-alive", "what is online")
	rig.Is(t, found(st.Online(ctx, "env-dead")), "false <nil>", "online at a dead server")
	conflict := found(st.Register(ctx, "env-dead", testKey(t), "key:x", always, never))
	rig.Is(t, conflict, "false <nil>", "conflict with an executor of a dead server")
	rig.Must(t, st.sweep(ctx, "alive"))
	rig.Is(t, len(rig.Value(all[Presence](ctx, st.presence))), 1, "presences after the sweep")
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
	rig.Is(t, after.Revision() == before.Revision(), false, "it has the same revision")
	rig.Is(t, string(after.Value()), string(before.Value()), "its value")
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
		rig.Is(t, fmt.Sprint(status.TTL(), status.LimitMarkerTTL()), fmt.Sprint(tt.ttl, tt.mark), "%s: TTL and markers", status.Bucket())
	}
}

func BenchmarkStoreGet(b *testing.B) {
	st, _ := openTestStore(b)
	rig.Must(b, errorOf(st.Register(b.Context(), "env", testKey(b), "key:x", always, never)))
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, errorOf(st.Registration(b.Context(), "env")))
	}
}

// TestStoreKeepsRoom: the buckets that executors can fill leave half of the storage to
// the others, such as that of keys.
func TestStoreKeepsRoom(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	var filled int64
	for _, kv := range []jetstream.KeyValue{st.registrations, st.replay} {
		limit := rig.Value(kv.Status(t.Context())).Config().MaxBytes
		rig.Is(t, limit > 0, true, "%s has a limit", kv.Bucket())
		filled += limit
	}
	rig.Is(t, filled <= embeddedStorage/2, true, "bytes that can be filled: %v, at most %v", filled, embeddedStorage/2)
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
	rig.Is(t, len(rig.Value(os.ReadDir(streams))) > 0, true, "it has streams")
	rig.Must(t, os.Mkdir(filepath.Join(streams, "KV_just_made"), 0o700))
	rig.Is(t, st.embedded.server.Healthz(nil).Error == "", false, "NATS does not miss the stream")
	rig.Check(t, writeError(st.embedded.server))
}
