package transport

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

var _ rpc.Identified = (*WebSocket)(nil)

const stranger = 65533 // a user who is nobody else in these tests

// unixURL is the URL of a socket in a folder of its own, which everybody can enter.
func unixURL(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock") // the names of t.TempDir are too long
	rig.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	rig.Must(t, os.Chmod(dir, 0o755))
	return "unix://" + dir + "/s"
}

// as calls f as another user, on a thread that ends with it.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- errno
			return
		}
		defer func() { done <- nil }() // f may end the test
		f()
	}()
	rig.Must(t, <-done)
}

// TestUnixListener: what it says of itself, plain HTTP, and its end.
func TestUnixListener(t *testing.T) {
	t.Parallel()
	url := unixURL(t)
	path := strings.TrimPrefix(url, "unix://")
	l := listen(t, Config{URL: url})
	rig.Is(t, fmt.Sprint(l.URL(), " ", l.Addr()), url+" "+path, "it listens at")
	got, _ := ask(t, l, readyz)
	rig.Is(t, got.Status, http.StatusOK, "/readyz")
	second := errText(rig.Err(Listen(Config{URL: url})))
	rig.Is(t, second, "listening on "+url+": another program already listens at "+path, "a second one")
	client := dialTo(t, l, DialConfig{})
	server := accept(t, l)
	want := fmt.Sprintf("uid:%d", os.Geteuid())
	rig.Is(t, server.Principal()+" "+server.String(), want+" websocket "+want, "the client")
	rig.Is(t, client.Principal()+" "+client.String(), " websocket "+path, "the server")
	rig.Must(t, l.Close())
	rig.Is(t, rig.Err(os.Lstat(path)), fs.ErrNotExist, "after the end")
}

// TestPrincipal: a connection is somebody's only if they have proven it.
func TestPrincipal(t *testing.T) {
	t.Parallel()
	build := func(o AuthOptions) *Authenticator {
		a, err := o.Authenticator()
		rig.Must(t, err)
		return a
	}
	jwt := build(AuthOptions{Mode: "signed-bearer-token", SecretFile: writeFile(t, testSecret)})
	capability := build(AuthOptions{Mode: "capability-token", TokenFile: writeFile(t, "token")})
	token := func(payload string) string {
		return sign(`{"alg":"HS256"}`, fmt.Sprintf(payload, time.Now().Add(time.Hour).Unix()), testSecret, sha256.New)
	}
	own := fmt.Sprintf("uid:%d", os.Geteuid())
	for _, tt := range []struct {
		name      string
		auth      *Authenticator
		token     string
		tcp, unix string
	}{
		{"no authentication", nil, "", "", own},
		{"a capability token", capability, "token", "", own},
		{"a subject", jwt, token(`{"exp":%d,"sub":"alice"}`), "sub:alice", "sub:alice"},
		{"a subject that is odd", jwt, token(`{"exp":%d,"sub":"uid:0\n"}`), "sub:uid:0\n", "sub:uid:0\n"},
		{"an empty subject", jwt, token(`{"exp":%d,"sub":""}`), "", own},
		{"no subject", jwt, token(`{"exp":%d}`), "", own},
	} {
		for url, want := range map[string]string{"ws://127.0.0.1:0": tt.tcp, unixURL(t): tt.unix} {
			header := http.Header{}
			if tt.token != "" {
				header.Set("Authorization", "Bearer "+tt.token)
			}
			_, server := webSocketPair(t, Config{URL: url, Auth: tt.auth}, DialConfig{Header: header})
			rig.Is(t, server.Principal(), want, "%s at %s", tt.name, url)
		}
	}
}

// TestAllowUIDs: who may connect, and what the others are told.
func TestAllowUIDs(t *testing.T) {
	t.Parallel()
	auth, err := capabilityTokenSHA256(fmt.Sprintf("%x", sha256.Sum256([]byte("token"))))
	rig.Must(t, err)
	l := listen(t, Config{URL: unixURL(t), AllowUIDs: []uint32{stranger, 7}})
	others := listen(t, Config{URL: unixURL(t), AllowUIDs: []uint32{7}})
	closed := listen(t, Config{URL: unixURL(t)})
	guarded := listen(t, Config{URL: unixURL(t), AllowUIDs: []uint32{stranger}, Auth: auth})
	accepted := make(chan rpc.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			accepted <- conn
		}
		close(accepted)
	}()
	as(t, stranger, func() {
		dialTo(t, l, DialConfig{})
		err := rig.Err(Dial(t.Context(), others.URL(), DialConfig{}))
		rig.Says(t, err, "uid 65533 may not connect: the agent was not started with --allow-uid 65533", "somebody else")
		rig.Is(t, refusal(err), http.StatusForbidden, "somebody else")
		got, _ := ask(t, others, readyz)
		rig.Is(t, got.Status, http.StatusOK, "a probe of somebody else")
		err = rig.Err(Dial(t.Context(), closed.URL(), DialConfig{}))
		rig.Is(t, err, fs.ErrPermission, "without --allow-uid")
		rig.Says(t, err, "belongs to uid 0, who does not let other users connect", "without --allow-uid")
		rig.Is(t, refusal(rig.Err(Dial(t.Context(), guarded.URL(), DialConfig{}))), http.StatusUnauthorized, "without a token")
	})
	server := <-accepted
	if server == nil {
		t.Fatal("nobody came")
	}
	t.Cleanup(func() { server.Close() })
	rig.Is(t, server.(rpc.Identified).Principal(), "uid:65533", "the client")
}

// TestForeignServer: a server that is somebody else's is told nothing, no token above all.
func TestForeignServer(t *testing.T) {
	t.Parallel()
	url := unixURL(t)
	dir := strings.TrimSuffix(strings.TrimPrefix(url, "unix://"), "/s")
	rig.Must(t, os.Chmod(dir, fs.ModeSticky|0o777))
	as(t, stranger, func() { listen(t, Config{URL: url, AllowUIDs: []uint32{0}}) })
	_, err := Dial(t.Context(), url, DialConfig{Header: http.Header{"Authorization": {"Bearer secret"}}})
	if _, ok := errors.AsType[URLError](err); !ok || !strings.Contains(err.Error(), "the server runs as uid 65533, which is not trusted") {
		t.Errorf("Dial: %v", err)
	}
}
