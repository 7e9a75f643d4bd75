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
	for _, variable := range []string{"SSL_CERT_FILE", "CODEX_CA_CERTIFICATE"} {
		t.Run(variable, func(t *testing.T) {
			executor := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, variable + "=" + cert}, nil,
				"--remote", "https://"+s.Address, "--environment-id", "ci-1")
			executor.Says(t, "connected to the rendezvous", 1)
			cmd := s.Exec(t, "ci-1", "echo", "encrypted twice")
			cmd.Args = strings.Split(strings.ReplaceAll(strings.Join(cmd.Args, "\x00"), "http://", "https://"), "\x00")
			cmd.Env = append(cmd.Env, variable+"="+cert)
			if out, err := cmd.Output(); err != nil || string(out) != "encrypted twice\n" {
				t.Errorf("%q, %v\n%s", out, err, s.Log)
			}
			executor.Terminate(t)
		})
	}
	// --tls-ca is for the registry alone, and nobody else counts then.
	other, _ := selfSigned(t)
	trusting := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, "AGENT_TLS_CA=" + cert}, nil, "--remote", "https://"+s.Address, "--environment-id", "ci-1")
	trusting.Says(t, "connected to the rendezvous", 1)
	trusting.Terminate(t)
	strict := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, "SSL_CERT_FILE=" + cert}, nil, "--remote", "https://"+s.Address, "--environment-id", "ci-1", "--tls-ca", other)
	if code := strict.Exit(t); code != 1 || !strings.Contains(strict.Printed.String(), "certificate signed by unknown authority") {
		t.Errorf("exit code %d with another authority\n%s", code, strict.Printed)
	}
	rig.Must(t, os.Chmod(other, 0o666))
	open := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil, "--remote", "https://"+s.Address, "--environment-id", "ci-1", "--tls-ca", other)
	if code := open.Exit(t); code != 1 || !strings.Contains(open.Printed.String(), "is refused") {
		t.Errorf("exit code %d with authorities that others can change\n%s", code, open.Printed)
	}
	// Without the certificate the agent does not show its key.
	untrusting := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil, "--remote", "https://"+s.Address, "--environment-id", "ci-1")
	if code := untrusting.Exit(t); code != 1 || !strings.Contains(untrusting.Printed.String(), "certificate signed by unknown authority (name the file of its certificate authority with --tls-ca, AGENT_TLS_CA or SSL_CERT_FILE") {
		t.Errorf("exit code %d without the certificate\n%s", code, untrusting.Printed)
	}
	// So it is with clients, which are told of the variable.
	key2 := filepath.Join(t.TempDir(), "key")
	rig.Must(t, os.WriteFile(key2, []byte(s.Harness), 0o600))
	for _, line := range [][]string{
		{"login", "https://" + s.Address, "--key-file", key2, "--config", filepath.Join(t.TempDir(), "config.toml")},
		{"environments", "--registry", "https://" + s.Address, "--registry-token-file", key2},
		{"exec", "--registry", "https://" + s.Address, "--registry-token-file", key2, "--environment-id", "ci-1", "--", "true"},
	} {
		out, code := said(t, os.Geteuid(), append([]string{rig.Agent(t)}, line...)...)
		if code == 0 || !strings.Contains(out, "certificate signed by unknown authority (name the file of its certificate authority with the variable SSL_CERT_FILE)") {
			t.Errorf("%s: exit code %d, %s", line[0], code, out)
		}
	}
	missing := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, "SSL_CERT_FILE=" + key}, nil, "--remote", "https://"+s.Address, "--environment-id", "ci-1")
	if code := missing.Exit(t); code != 1 || !strings.Contains(missing.Printed.String(), "holds no certificate") {
		t.Errorf("exit code %d with a file of another kind\n%s", code, missing.Printed)
	}
}
