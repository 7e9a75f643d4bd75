package e2e

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

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

// TestRegistryLogJSON: with a log in JSON nothing else is printed, neither while it serves nor why
// it cannot.
func TestRegistryLogJSON(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"data": {"--data", "/dev/null/x"}, "certificate": {"--data", t.TempDir(), "--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"},
		"NATS": {"--nats-url", "nats://me:sesame@%"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(rig.Registry(t), append([]string{"serve", "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)...)
			cmd.Env = []string{}
			p := rig.Start(t, cmd)
			rig.Is(t, p.Exit(t), 1, "exit code")
			var line struct{ Level, Msg, Error string }
			if err := json.Unmarshal([]byte(p.Printed.String()), &line); err != nil || line.Level != "ERROR" || line.Error == "" || strings.Contains(line.Error, "sesame") {
				t.Errorf("it says %s, %v", p.Printed, err)
			}
		})
	}
}
