package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRemoteTLS: agents reach a registry over https, both its API and the rendezvous. They trust
// its certificate because either of two variables names a file with it.
func TestRemoteTLS(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	cert, key := selfSigned(t)
	s := &rig.Site{Pattern: "ci-*", Address: rig.FreeAddress(t), Data: filepath.Join(t.TempDir(), "data"), Log: &rig.Transcript{}}
	s.CreateKeys(t)
	s.Registry = s.Start(t, rig.Registry(t), nil, nil, "serve", "--listen", s.Address, "--data", s.Data, "--tls-cert", cert, "--tls-key", key)
	s.Registry.Says(t, "https://", 1)
	// serve starts an executor with a variable and flags, and waits until it says something.
	serve := func(variable, says string, flags ...string) *rig.Program {
		t.Helper()
		args := append([]string{"--remote", "https://" + s.Address, "--environment-id", "ci-1"}, flags...)
		p := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, variable}, nil, args...)
		p.Says(t, says, 1)
		return p
	}
	const connected, unknown = "connected to the rendezvous", "certificate signed by unknown authority"
	for _, variable := range []string{"SSL_CERT_FILE", "CODEX_CA_CERTIFICATE"} {
		t.Run(variable, func(t *testing.T) {
			executor := serve(variable+"="+cert, connected)
			cmd := s.Exec(t, "ci-1", "echo", "encrypted twice")
			cmd.Args = strings.Split(strings.ReplaceAll(strings.Join(cmd.Args, "\x00"), "http://", "https://"), "\x00")
			cmd.Env = append(cmd.Env, variable+"="+cert)
			rig.Is(t, says(t, cmd), "encrypted twice\n", "%s: it prints", s.Log)
			executor.Terminate(t)
		})
	}
	// --tls-ca is for the registry alone, and nobody else counts then.
	other, _ := selfSigned(t)
	serve("AGENT_TLS_CA="+cert, connected).Terminate(t)
	rig.Is(t, serve("SSL_CERT_FILE="+cert, unknown, "--tls-ca", other).Exit(t), 1, "with another authority: exit code")
	rig.Must(t, os.Chmod(other, 0o666))
	rig.Is(t, serve("A=", "is refused", "--tls-ca", other).Exit(t), 1, "with authorities that others can change: exit code")
	// Without the certificate the agent does not show its key.
	untrusting := serve("A=", unknown+" (name the file of its certificate authority with --tls-ca, AGENT_TLS_CA or SSL_CERT_FILE")
	rig.Is(t, untrusting.Exit(t), 1, "without the certificate: exit code")
	// So it is with clients, which are told of the variable.
	key2 := filepath.Join(t.TempDir(), "key")
	rig.Must(t, os.WriteFile(key2, []byte(s.Harness), 0o600))
	for _, line := range [][]string{
		{"login", "https://" + s.Address, "--key-file", key2, "--config", filepath.Join(t.TempDir(), "config.toml")},
		{"environments", "--registry", "https://" + s.Address, "--registry-token-file", key2},
		{"exec", "--registry", "https://" + s.Address, "--registry-token-file", key2, "--environment-id", "ci-1", "--", "true"},
	} {
		has(t, said(t, os.Geteuid(), append([]string{rig.Agent(t)}, line...)...), "exit ",
			unknown+" (name the file of its certificate authority with the variable SSL_CERT_FILE)")
	}
	rig.Is(t, serve("SSL_CERT_FILE="+key, "holds no certificate").Exit(t), 1, "with a file of another kind: exit code")
}
