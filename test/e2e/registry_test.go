package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/execagent/execagent/test/rig"
)

// startRegistry starts the registry without waiting for anything. Its NATS is at a URL.
func startRegistry(t *testing.T, natsURL string, args ...string) *rig.Program {
	t.Helper()
	cmd := exec.Command(rig.Registry(t), append([]string{"serve", "--listen", "127.0.0.1:0", "--nats-url", natsURL}, args...)...)
	cmd.Env = []string{}
	return rig.Start(t, cmd)
}

// startNATS starts a NATS server in this process until the test ends.
func startNATS(t *testing.T, options server.Options) *server.Server {
	t.Helper()
	options.Host, options.NoSigs, options.NoLog = "127.0.0.1", true, true
	if options.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	if options.StoreDir == "" {
		options.StoreDir = t.TempDir()
	}
	s, err := server.NewServer(&options)
	rig.Must(t, err)
	s.Start()
	t.Cleanup(func() { stopNATS(t, s) })
	rig.Is(t, s.ReadyForConnections(rig.Patience), true, "NATS has started")
	return s
}

func stopNATS(t *testing.T, s *server.Server) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Shutdown()
		s.WaitForShutdown()
	}()
	rig.Until(t, "NATS ends", isClosed(ended))
}

// TestRegistryWithoutNATS: what is wrong with NATS is told in one line, at once, and no password
// is in it.
func TestRegistryWithoutNATS(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		nats  server.Options
		login string
		args  []string
		want  string
	}{
		"JetStream":   {want: "this NATS has no JetStream; start it with -js"},
		"replicas":    {nats: server.Options{JetStream: true}, args: []string{"--nats-replicas", "3"}, want: "this NATS is a single server and cannot keep 3 replicas (--nats-replicas)"},
		"password":    {nats: server.Options{JetStream: true, Username: "me", Password: "right"}, login: "me:sesame@", want: "it refuses the credentials, or needs credentials: nats: Authorization Violation"},
		"no password": {nats: server.Options{JetStream: true, Username: "me", Password: "right"}, want: "it refuses the credentials, or needs credentials: nats: Authorization Violation"},
		"no file":     {nats: server.Options{JetStream: true}, args: []string{"--nats-creds", "/nonexistent"}, want: "open /nonexistent: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := strings.TrimPrefix(startNATS(t, tt.nats).ClientURL(), "nats://")
			p := startRegistry(t, "nats://"+tt.login+address, tt.args...)
			rig.Is(t, p.Exit(t), 1, "exit code")
			said := p.Printed.String()
			rig.Is(t, strings.Count(said, "\n"), 1, "%s: lines", said)
			matches(t, said, "^registry: NATS at nats://"+address+": .*"+regexp.QuoteMeta(tt.want)+"\n$")
		})
	}
}

// TestRegistryWaitsForNATS: a registry waits for a NATS that is not there yet, and says for what;
// signals end the waiting, but not SIGHUP.
func TestRegistryWaitsForNATS(t *testing.T) {
	t.Parallel()
	at := rig.FreeAddress(t)
	with := url.URL{Scheme: "nats", User: url.UserPassword("me", "sesame"), Host: at}
	var waiting [3]*rig.Program
	for i := range waiting {
		waiting[i] = startRegistry(t, with.String())
		waiting[i].Says(t, `msg="waiting for NATS" servers=nats://`+at+` reason="nobody answers: connection refused"`, 1)
		rig.Must(t, waiting[i].Process.Signal(syscall.SIGHUP))
	}
	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := waiting[i]
		rig.Must(t, p.Process.Signal(signal))
		rig.Is(t, p.Exit(t), 0, "exit code after %v", signal)
		rig.Is(t, strings.Count(p.Printed.String(), "\n"), 2, "lines")
		has(t, p.Printed.String(), "ended before it could serve")
	}
	port := rig.Value(strconv.Atoi(at[strings.LastIndex(at, ":")+1:]))
	startNATS(t, server.Options{Port: port, JetStream: true, Username: "me", Password: "sesame"})
	last := waiting[2]
	matches(t, last.Line(t), "^http://")
	last.Terminate(t)
	for _, p := range waiting {
		lacks(t, p.Printed.String(), "sesame")
	}
}

// TestRegistryLosesNATS: an outage is three lines of the log, however many requests fail meanwhile.
func TestRegistryLosesNATS(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	port := rig.Value(strconv.Atoi(port(t)))
	options := server.Options{Port: port, JetStream: true, StoreDir: t.TempDir()}
	nats := startNATS(t, options)
	site := &rig.Site{Pattern: "ci-*", Environ: []string{"REGISTRY_NATS_URL=" + nats.ClientURL()}}
	site.Open(t)
	stopNATS(t, nats)
	site.Registry.Says(t, `msg="NATS is away" reason=`, 1)
	ready := func(want int) func() bool {
		return func() bool { return rig.Status(site.URL()+"/readyz") == want }
	}
	site.Registry.Until(t, "it is not ready", ready(http.StatusServiceUnavailable))
	for range 30 {
		request, err := http.NewRequestWithContext(rig.Context(t), "POST", site.URL()+"/cloud/environment/ci-1/connect", strings.NewReader("{}"))
		rig.Must(t, err)
		request.Header.Set("Authorization", "Bearer "+site.Harness)
		response, err := http.DefaultClient.Do(request)
		rig.Must(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusServiceUnavailable || !ready(http.StatusServiceUnavailable)() {
			t.Fatalf("without NATS a harness is answered %d", response.StatusCode)
		}
	}
	startNATS(t, options)
	site.Registry.Says(t, "NATS connection is back", 1)
	site.Registry.Until(t, "it is ready", ready(http.StatusOK))
	site.Registry.Says(t, "ready again", 1)
	said := site.Registry.Printed.String()
	for text, most := range map[string]int{
		"NATS connection lost": 1, "NATS is away": 3, "NATS connection is back": 1, "not ready": 2, "outbound buffer limit exceeded": 0, "the store fails": 3,
	} {
		if n := strings.Count(said, text); n > most {
			t.Errorf("%q is logged %d times, at most %d are for an outage", text, n, most)
		}
	}
}

// TestRegistryRenewsCertificate: while clients come without a pause, certificates are renewed:
// each client is served, the new one is shown, and what cannot be used is not. The log is JSON
// all along.
func TestRegistryRenewsCertificate(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "registry.crt"), filepath.Join(dir, "registry.key")
	certify(t, dir, "ca", "ca")
	renew := func() (serial int64) {
		t.Helper()
		certify(t, dir, "registry", "ca")
		return certificate(t, dir, "registry").Leaf.SerialNumber.Int64()
	}
	renew()
	address := rig.FreeAddress(t)
	cmd := exec.Command(rig.Registry(t), "serve", "--listen", address, "--data", filepath.Join(dir, "data"),
		"--tls-cert", cert, "--tls-key", key, "--log-format", "json")
	cmd.Env = []string{}
	p := rig.Start(t, cmd)
	p.Says(t, `"msg":"listening","url":"https://`+address+`","version":"`, 1)

	visitor := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: authority(t, dir, "ca"), MinVersion: tls.VersionTLS12},
	}}
	shown := func() (serial int64, err error) {
		response, err := visitor.Get("https://" + address + "/healthz")
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		rig.Is(t, response.StatusCode, http.StatusOK, "status")
		return response.TLS.PeerCertificates[0].SerialNumber.Int64(), nil
	}
	var served atomic.Int64
	over := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if _, err := shown(); err != nil {
					t.Errorf("a client is not served: %v", err)
					return
				}
				served.Add(1)
			}
		})
	}
	see := func(want int64) {
		t.Helper()
		p.Until(t, "the new certificate is shown", func() bool {
			serial, err := shown()
			rig.Must(t, err)
			return serial == want
		})
	}
	var last int64
	for range 6 {
		last = renew()
		see(last)
	}
	before := strings.Count(p.Printed.String(), "cannot be read again")
	replace(t, key, []byte("no key\n"))
	p.Says(t, "cannot be read again", before+1)
	begun := served.Load()
	p.Until(t, "two hundred more clients are served", func() bool { return served.Load() >= begun+200 })
	time.Sleep(1200 * time.Millisecond) // it looks again after a second
	see(last)
	rig.Is(t, strings.Count(p.Printed.String(), "cannot be read again"), before+1, "how often what is wrong with keys is logged")
	see(renew())
	close(over)
	load.Wait()
	t.Logf("%d clients were served", served.Load())

	// Nobody comes now: a signal makes it look.
	again := strings.Count(p.Printed.String(), "the certificate was read again")
	time.Sleep(2 * time.Second) // until it has settled
	renew()
	rig.Must(t, p.Process.Signal(syscall.SIGHUP))
	p.Says(t, "the certificate was read again", again+1)
	p.Terminate(t)
	matches(t, p.Printed.String(), `"msg":"ended".*\n$`)
	allJSON(t, p.Printed.String())
}

// TestUpgrade: a registry of an older version and one of this tree are one registry, on one NATS:
// a command goes on while its executor is at the older and its harness at the newer, and while the
// older ends and comes back. Clients of each version run commands on agents of the other.
func TestUpgrade(t *testing.T) {
	commit := os.Getenv("E2E_OLD") // make upgrade
	if commit == "" {
		rig.Tier(t, rig.Nightly)
		const last = "git -C ../.. describe --tags --abbrev=0 2>/dev/null || git -C ../.. rev-parse HEAD~40"
		out, err := rig.Command(t, "sh", "-c", last).Output()
		if commit = strings.TrimSpace(string(out)); err != nil {
			t.Skipf("there is no older commit: %v", err)
		}
	}
	t.Parallel()
	nats := startNATS(t, server.Options{JetStream: true})
	older := &rig.Site{Pattern: "ci-*", Log: &rig.Transcript{}, Program: old(t, commit, "registry"), Environ: []string{"REGISTRY_NATS_URL=" + nats.ClientURL()}}
	older.Open(t)
	newer := older.At(rig.FreeAddress(t))
	newer.Program = ""
	newer.StartRegistry(t)
	executors, harnesses := rig.NewProxy(t, older.Address, newer.Address), rig.NewProxy(t, older.Address, newer.Address)
	executor := older.At(executors.Address()).Serve(t, "ci-1")

	const lines = 400
	run := func() (next, end func()) {
		t.Helper()
		p := connect(t, newer.At(harnesses.Address()).Exec(t, "ci-1", "sh", "-c",
			fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 7", lines)))
		n := 0
		next = func() {
			t.Helper()
			p.says(t, fmt.Sprint(n))
			n++
		}
		return next, func() {
			t.Helper()
			for n < lines {
				next()
			}
			rig.Is(t, p.Exit(t), 7, "exit code")
		}
	}
	next, end := run()
	for step, do := range []func(){
		func() { executors.Move(t, 0); harnesses.Move(t, 1) }, // old and new side by side
		func() { executors.Move(t, 1); harnesses.Move(t, 0) },
		func() { older.Registry.Terminate(t) }, // the upgrade
		func() { older.StartRegistry(t) },      // and the way back
		func() { executors.Move(t, 0); harnesses.Move(t, 1) },
	} {
		for range 20 {
			next()
		}
		t.Logf("step %d", step)
		do()
	}
	end()

	// A key that either has made is valid at both.
	for maker, user := range map[*rig.Site]*rig.Site{older: newer, newer: older} {
		key, _ := maker.CreateKey(t, "harness")
		with := *user.At(harnesses.Address())
		with.Harness = key
		rig.Is(t, with.Run(t, "ci-1", "echo", "hello"), "hello\n", "it prints")
	}
	executor.Terminate(t)

	oldAgent := old(t, commit, "agent")
	for client, server := range map[string]string{oldAgent: rig.Agent(t), rig.Agent(t): oldAgent} {
		socket := "unix://" + filepath.Join(t.TempDir(), "s")
		agent := rig.Start(t, rig.Command(t, server, "--listen", socket))
		rig.Is(t, agent.Line(t), socket, "it listens at")
		command := rig.Command(t, client, "exec", "--url", socket, "--", "sh", "-c", "cat; echo err >&2; exit 7")
		command.Stdin = strings.NewReader("in\n")
		rig.Is(t, finish(t, command), result{"in\n", "err\n", 7}, "%s runs a command on %s", client, server)
		agent.Terminate(t)
	}
}

// old builds a program of a commit.
func old(t *testing.T, commit, program string) string {
	t.Helper()
	dir := t.TempDir()
	script := `git -C ../.. archive "$1" | tar -x -C "$2" && cd "$2" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "old-$3" "./cmd/$3"`
	built := finish(t, rig.Command(t, "sh", "-c", script, "sh", commit, dir, program))
	rig.Is(t, built.code, 0, "%+v: building %s of %s ends with", built, program, commit)
	return filepath.Join(dir, "old-"+program)
}
