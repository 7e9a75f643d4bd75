package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/test/rig"
)

// command runs the program in this process, with an empty HOME, and returns what it
// prints.
func command(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = run(system{args: args, home: t.TempDir(), stdout: &out, stderr: &complaints})
	return code, out.String(), complaints.String()
}

// mustRun is command for what has to end with exit code 0.
func mustRun(t testing.TB, args ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := command(t, args...)
	if code != exitOK {
		t.Fatalf("%q: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

// refused runs a command that has to fail, with a complaint that has this text.
func refused(t testing.TB, want string, args ...string) {
	t.Helper()
	code, _, stderr := command(t, args...)
	if code != exitFailure || !strings.Contains(stderr, want) {
		t.Errorf("%q: exit code %d, %s, want %q", args, code, stderr, want)
	}
}

// running is a server in this process.
type running struct {
	url     string
	signals chan os.Signal
	code    chan int
	log     *bytes.Buffer // may be read when code has yielded the exit code
}

// start runs the server and waits until it listens.
func start(t testing.TB, args ...string) *running {
	t.Helper()
	out, in := io.Pipe()
	r := &running{signals: make(chan os.Signal, 2), code: make(chan int, 1), log: new(bytes.Buffer)}
	go func() {
		r.code <- run(system{args: args, home: "/nonexistent", signals: r.signals, stdout: in, stderr: r.log})
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v, exit code %d: %s", err, <-r.code, r.log)
	}
	r.url = strings.TrimSpace(line)
	return r
}

// stop ends the server with SIGTERM, which has to succeed.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.signals <- syscall.SIGTERM
	select {
	case code := <-r.code:
		rig.Is(t, code, exitOK, "the exit code after SIGTERM, %s", r.log)
	case <-time.After(3 * time.Minute): // however busy the machine
		t.Fatal("it does not end")
	}
}

// TestServeAndCommands: an operator's commands work on a store while a server runs
// on it, and while none does.
func TestServeAndCommands(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	before := strings.TrimSpace(mustRun(t, "keys", "create", "--role=executor", "--environment=env-*", "--label=before", "--data", data))
	server := start(t, "--listen=127.0.0.1:0", "--data", data)
	after := strings.TrimSpace(mustRun(t, "keys", "create", "--role=harness", "--environment=env-1", "--expires=1h", "--streams=3", "--data", data))

	status := func(key, operation string) int {
		return ask(t, "POST", server.url+"/cloud/environment/env-1/"+operation, key)
	}
	// Status 400 means that the key and its role were accepted: only the body {} is
	// wrong.
	for _, tt := range []struct {
		key, operation string
		want           int
	}{{before, "register", 400}, {after, "connect", 400}, {before, "connect", 403}, {"xa_", "connect", 401}} {
		rig.Is(t, status(tt.key, tt.operation), tt.want, "%s", tt.operation)
	}

	var keys []store.Key
	rig.Must(t, json.Unmarshal([]byte(mustRun(t, "keys", "list", "--json", "--data", data)), &keys))
	if len(keys) != 2 {
		t.Fatalf("keys are %+v", keys)
	}
	executor, harness := keys[0], keys[1]
	if executor.Role != "executor" {
		executor, harness = harness, executor // keys of the same second are listed in any order
	}
	if executor.Label != "before" || executor.Environments != "env-*" || !executor.Expires.IsZero() ||
		harness.Role != "harness" || harness.Limits != (store.Limits{Streams: 3}) || time.Until(harness.Expires) < 59*time.Minute {
		t.Errorf("keys are %+v", keys)
	}
	mustRun(t, "keys", "revoke", executor.ID, "--data", data)
	rig.Is(t, status(before, "register"), 401, "a revoked key")
	list := mustRun(t, "keys", "list", "--data", data)
	if !strings.Contains(list, "revoked ") || !strings.Contains(list, "valid until ") || !strings.HasPrefix(list, "ID ") {
		t.Errorf("keys are\n%s", list)
	}
	refused(t, "not found", "keys", "revoke", "0123456789abcdef", "--data", data)

	public, _, err := ed25519.GenerateKey(nil)
	rig.Must(t, err)
	der := rig.Value(x509.MarshalPKIXPublicKey(public))
	raw := base64.StdEncoding.EncodeToString(public)
	mustRun(t, "identities", "add", "agent-1", "--public-key", raw, "--environment=*", "--data", data)
	mustRun(t, "identities", "add", "agent-2", "--public-key", base64.StdEncoding.EncodeToString(der), "--environment=env-*", "--data", data)
	rig.Is(t, strings.Count(mustRun(t, "identities", "list", "--data", data), raw), 2, "identities with the key")
	mustRun(t, "identities", "remove", "agent-1", "--data", data)
	var identities []store.Identity
	rig.Must(t, json.Unmarshal([]byte(mustRun(t, "identities", "list", "--json", "--data", data)), &identities))
	rig.Is(t, len(identities), 1, "identities")
	rig.Is(t, identities[0].RuntimeID, "agent-2", "the identity of")
	refused(t, "", "identities", "remove", "agent-1", "--data", data)
	rig.Is(t, mustRun(t, "environments", "--json", "--data", data), "[]\n", "environments")
	got := mustRun(t, "environments", "--data", data)
	rig.Is(t, strings.HasPrefix(got, "ENVIRONMENT ") && strings.Count(got, "\n") == 1, true, "environments are %q", got)

	refused(t, "another process", "--listen=127.0.0.1:0", "--data", data)
	server.stop(t)
	for _, key := range []string{before, after} {
		rig.Is(t, strings.Contains(server.log.String(), key) || strings.Contains(list, key), false, "a key was printed again")
	}
	rig.Is(t, strings.Contains(mustRun(t, "keys", "list", "--data", data), executor.ID), true, "after the server there is the key")
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/lines.txt", "usage", 2) {
		code, _, stderr := command(t, strings.Fields(row[0])...)
		if code != exitUsage || !strings.Contains(stderr, row[1]) {
			t.Errorf("%s: exit code %d, %q, want %q", row[0], code, stderr, row[1])
		}
	}
	for _, row := range rig.Rows(t, "testdata/lines.txt", "failure", 1) {
		code, stdout, stderr := command(t, strings.Fields(row[0])...)
		rig.Is(t, code == exitFailure && stdout == "" && stderr != "", true, "%s: exit code %d, %q, %q", row[0], code, stdout, stderr)
	}
}

// TestDefaultData: without an absolute HOME or XDG_STATE_HOME the commands refuse to
// run; they never put a store in the working directory.
func TestDefaultData(t *testing.T) {
	work, home := t.TempDir(), t.TempDir()
	t.Chdir(work)
	for _, tt := range []struct {
		home, state string
		want        string // the folder of the state; "": the command is refused
	}{
		{"", "", ""},
		{"home", "", ""},
		{".", "", ""},
		{home, "state", ""},
		{"home", "state", ""},
		{home, "", filepath.Join(home, ".local", "state", "execagent-registry")},
		{"", filepath.Join(home, "state"), filepath.Join(home, "state", "execagent-registry")},
		{"home", filepath.Join(home, "other"), filepath.Join(home, "other", "execagent-registry")},
	} {
		for _, args := range []string{"keys create --role=executor --environment=*", "keys list", "environments", "serve --listen=127.0.0.1:0 --clock-skew=1h"} {
			var out, complaints bytes.Buffer
			code := run(system{args: strings.Fields(args), home: tt.home, state: tt.state, stdout: &out, stderr: &complaints})
			switch {
			case tt.want == "" && (code != exitUsage || !strings.Contains(complaints.String(), "--data")):
				t.Errorf("HOME %q, XDG_STATE_HOME %q, %s: exit code %d, %s", tt.home, tt.state, args, code, &complaints)
			case tt.want != "" && strings.HasPrefix(args, "keys") && code != exitOK:
				t.Errorf("HOME %q, XDG_STATE_HOME %q, %s: exit code %d, %s", tt.home, tt.state, args, code, &complaints)
			}
		}
		if _, err := os.Stat(filepath.Join(tt.want, "nats")); tt.want != "" && err != nil {
			t.Errorf("HOME %q, XDG_STATE_HOME %q: %v", tt.home, tt.state, err)
		}
		// With --data no home is needed.
		var out, complaints bytes.Buffer
		args := []string{"keys", "create", "--role=harness", "--environment=*", "--data", filepath.Join(home, "named")}
		if code := run(system{args: args, home: tt.home, state: tt.state, stdout: &out, stderr: &complaints}); code != exitOK {
			t.Errorf("HOME %q, XDG_STATE_HOME %q, with --data: exit code %d, %s", tt.home, tt.state, code, &complaints)
		}
	}
	rig.Is(t, len(rig.Value(os.ReadDir(work))), 0, "what the working directory holds")
}

// TestNoRegistry: a command that makes no store says that there is none, and makes none.
func TestNoRegistry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, line := range []string{"keys list", "keys revoke 0123456789abcdef", "environments", "status", "identities list", "backup " + dir + "/b"} {
		refused(t, "there is no registry in "+dir+": name its folder with --data, or its cluster with --nats-url", append(strings.Fields(line), "--data", dir)...)
	}
	rig.Is(t, len(rig.Value(os.ReadDir(dir))), 0, "files in the folder")
	rig.Is(t, mustRun(t, "--version"), mustRun(t, "version"), "the version")
}

func TestParseExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"90m":                       now.Add(90 * time.Minute),
		"2026-05-01T14:00:01+01:00": now.Add(time.Hour + time.Second),
		"2026-06-01":                time.Date(2026, 6, 1, 0, 0, 0, 0, time.Local).UTC(),
	} {
		rig.Is(t, rig.Value(parseExpiry(text, now)).Equal(want), true, "%q is %v", text, want)
	}
}

// TestServeTLS: with a certificate the server listens also on an address that is
// not a loopback one, and refuses old cipher suites. It uses a private key that
// others can read, and names the file in its log.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	private := rig.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der := rig.Value(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))
	privateDER := rig.Value(x509.MarshalPKCS8PrivateKey(private))
	certPath, keyPath := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certPath: {Type: "CERTIFICATE", Bytes: der}, keyPath: {Type: "PRIVATE KEY", Bytes: privateDER}} {
		rig.Must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	rig.Must(t, os.Chmod(keyPath, 0o644))
	server := start(t, "serve", "--listen=0.0.0.0:0", "--tls-cert", certPath, "--tls-key", keyPath, "--data", filepath.Join(dir, "data"))
	certificate := rig.Value(x509.ParseCertificate(der))
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.url, "https://"))
	rig.Must(t, err)
	request := rig.Value(http.NewRequestWithContext(t.Context(), "GET", "https://127.0.0.1:"+port+"/readyz", nil))
	response := rig.Value(client.Do(request))
	response.Body.Close()
	rig.Is(t, response.StatusCode, http.StatusOK, "status")
	rig.Is(t, response.ProtoMajor, 1, "HTTP")
	// Suites of CBC do not authenticate the ciphertext, so they are refused.
	old := &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,
	}}
	if conn, err := tls.Dial("tcp", "127.0.0.1:"+port, old); err == nil {
		t.Errorf("a client of CBC alone is taken, with %s", tls.CipherSuiteName(conn.ConnectionState().CipherSuite))
		conn.Close()
	}
	server.stop(t)
	want := `msg="other users can read a secret" reason="` + keyPath + ` has mode 0644`
	rig.Is(t, strings.Contains(server.log.String(), want), true, "%s is in\n%s", want, server.log)
}

// TestMetricsListen: with a port of their own the metrics are there alone.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	address := rig.FreeAddress(t)
	server := start(t, "--listen=127.0.0.1:0", "--metrics-listen="+address, "--data", filepath.Join(t.TempDir(), "data"))
	for _, tt := range []struct {
		url  string
		want int
	}{
		{server.url + "/metrics", 404}, {server.url + "/readyz", 200}, {server.url + "/healthz", 200},
		{"http://" + address + "/metrics", 200}, {"http://" + address + "/readyz", 200}, {"http://" + address + "/healthz", 200},
		{"http://" + address + "/cloud/environments", 404},
	} {
		response := rig.Value(http.Get(tt.url))
		response.Body.Close()
		rig.Is(t, response.StatusCode, tt.want, "%s", tt.url)
	}
	told := mustRun(t, "status", "--url", server.url)
	rig.Is(t, strings.Contains(told, "state: ready\nthis address has no /metrics"), true, "status tells\n%s", told)
	if told := mustRun(t, "status", "--url", address); !strings.Contains(told, "state: ready\n") || !strings.Contains(told, "limit streams: 20000\n") {
		t.Errorf("status tells\n%s", told)
	}
	server.stop(t)
	want := "metrics=http://" + address + "/metrics"
	rig.Is(t, strings.Contains(server.log.String(), want), true, "%s is in\n%s", want, server.log)
}

// TestKeyFiles: a new key goes to a file of its own or to JSON, and a rotated one replaces it.
func TestKeyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, out := filepath.Join(dir, "data"), filepath.Join(dir, "key")
	server := start(t, "--listen=127.0.0.1:0", "--data", data)
	status := func(key string) int { return accepted(t, server.url, key) }
	create := []string{"keys", "create", "--role=harness", "--environment=env-*", "--out", out, "--data", data}
	rig.Is(t, mustRun(t, create...), "", "it prints")
	text := rig.Value(os.ReadFile(out))
	rig.Is(t, rig.Value(os.Stat(out)).Mode(), 0o600, "the mode of the file")
	first := strings.TrimSpace(string(text))
	rig.Is(t, status(first), 200, "the key in the file is not valid")
	refused(t, "already exists", create...)
	var keys []store.Key
	rig.Must(t, json.Unmarshal([]byte(mustRun(t, "keys", "list", "-o", "json", "--data", data)), &keys))
	rig.Is(t, len(keys), 1, "keys")
	id := keys[0].ID
	var made struct{ ID, Key, File, Role string }
	if err := json.Unmarshal([]byte(mustRun(t, "keys", "rotate", id, "-o", "json", "--data", data)), &made); err != nil || made.ID != id || made.Role != "harness" || made.File != "" {
		t.Fatalf("rotated: %+v, %v", made, err)
	}
	rig.Is(t, status(first)+status(made.Key), 200+200, "after rotating both are valid")
	rig.Is(t, strings.Contains(mustRun(t, "keys", "list", "--data", data), "valid, the replaced key until "), true, "the list has the grace")
	next := filepath.Join(dir, "next")
	if err := json.Unmarshal([]byte(mustRun(t, "keys", "rotate", id, "--grace=0", "-o", "json", "--out", next, "--data", data)), &made); err != nil || made.File != next {
		t.Fatalf("rotated: %+v, %v", made, err)
	}
	text = rig.Value(os.ReadFile(next))
	if status(first) != 401 || status(made.Key) != 401 || status(strings.TrimSpace(string(text))) != 200 {
		t.Error("after rotating without grace not the new one alone is valid")
	}
	list := mustRun(t, "keys", "list", "--data", data)
	rig.Is(t, strings.Contains(list, "LAST USED") && strings.Count(list, "\n") == 2, true, "keys are\n%s", list)
	nowhere := filepath.Join(dir, "missing", "key")
	refused(t, "", "keys", "rotate", id, "--out", nowhere, "--data", data)
	rig.Is(t, status(strings.TrimSpace(string(text))), 200, "the key that was not rotated")
	mustRun(t, "keys", "revoke", id, "--data", data)
	refused(t, "revoked", "keys", "rotate", id, "--out", filepath.Join(dir, "late"), "--data", data)
	rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, "late"))), fs.ErrNotExist, "the file of a key that there is not")
	server.stop(t)
	if strings.Contains(server.log.String(), first) || strings.Contains(server.log.String(), strings.TrimSpace(string(text))) {
		t.Error("a key is in the log")
	}
}

// TestEmptyPaths: a variable for a file that is empty is not given.
func TestEmptyPaths(t *testing.T) {
	for _, name := range []string{"REGISTRY_TLS_CERT", "REGISTRY_TLS_KEY", "REGISTRY_NATS_CREDS"} {
		t.Setenv(name, "")
	}
	server := start(t, "--listen=127.0.0.1:0", "--data", t.TempDir()+"/data")
	rig.Is(t, strings.HasPrefix(server.url, "http://"), true, "it listens at %s", server.url)
	server.stop(t)
}
