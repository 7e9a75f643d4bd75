package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// certificates counts those that certify has made. Each has another number, and is valid for an
// hour longer.
var certificates atomic.Int64

// certify writes a certificate for 127.0.0.1 and its key into a folder, as NAME.crt and NAME.key,
// in the place of those that were there, one after the other. It is signed by the one of another
// name, or by itself.
func certify(t *testing.T, dir, name, by string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rig.Must(t, err)
	number := certificates.Add(1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Duration(number) * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: name == by,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, any(key)
	if name != by {
		pair := certificate(t, dir, by)
		parent, signer = pair.Leaf, pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	rig.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	rig.Must(t, err)
	replace(t, filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	replace(t, filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// selfSigned is a certificate of certify's, and its key.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certify(t, dir, "own", "own")
	return filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
}

// certificate reads one that certify has written.
func certificate(t *testing.T, dir, name string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	rig.Must(t, err)
	return pair
}

// authority returns the pool of those who trust one that certify has written.
func authority(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(certificate(t, dir, name).Leaf)
	return pool
}

// replace puts a file in the place of another.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	rig.Must(t, os.WriteFile(path+".new", text, 0o600))
	rig.Must(t, os.Rename(path+".new", path))
}

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
	// So it is with clients, which are told what to do.
	key2 := filepath.Join(t.TempDir(), "key")
	rig.Must(t, os.WriteFile(key2, []byte(s.Harness), 0o600))
	for _, line := range [][]string{
		{"login", "https://" + s.Address, "--key-file", key2, "--config", filepath.Join(t.TempDir(), "config.toml")},
		{"environments", "--registry", "https://" + s.Address, "--registry-token-file", key2},
		{"exec", "--registry", "https://" + s.Address, "--registry-token-file", key2, "--environment-id", "ci-1", "--", "true"},
	} {
		has(t, said(t, os.Geteuid(), append([]string{rig.Agent(t)}, line...)...), "exit ",
			unknown+" (name the file of its certificate authority with --tls-ca or SSL_CERT_FILE)")
	}
	// --tls-ca is enough for each of them, and login keeps it in the context.
	serve("SSL_CERT_FILE="+cert, connected)
	config := filepath.Join(t.TempDir(), "config.toml")
	for _, line := range [][]string{
		{"login", "https://" + s.Address, "--name", "r", "--environment-id", "ci-1", "--key-file", key2, "--config", config, "--tls-ca", cert},
		{"environments", "--registry", "https://" + s.Address, "--registry-token-file", key2, "--tls-ca", cert},
		{"exec", "--config", config, "--context", "r", "--", "true"},
		{"context", "add", "s", "--config", config, "--registry", "https://" + s.Address, "--environment-id", "ci-1", "--token-file", key2, "--tls-ca", cert},
		{"exec", "--config", config, "--context", "s", "--", "true"},
	} {
		lacks(t, said(t, os.Geteuid(), append([]string{rig.Agent(t)}, line...)...), "exit ")
	}
	rig.Is(t, serve("SSL_CERT_FILE="+key, "holds no certificate").Exit(t), 1, "with a file of another kind: exit code")
}
