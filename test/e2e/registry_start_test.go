package e2e

import (
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
