package tlsconfig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

const host = "host.test"

// certify returns a certificate for host that key has signed itself, and roots
// that trust it.
func certify(t *testing.T, key crypto.Signer) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: []string{host},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	rig.Must(t, err)
	parsed, err := x509.ParseCertificate(der)
	rig.Must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// handshake returns what a client and a server agree on, and the client's error.
func handshake(client, server *tls.Config) (tls.ConnectionState, error) {
	client = client.Clone()
	client.ServerName = host
	near, far := net.Pipe()
	defer near.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer far.Close()
		_ = tls.Server(far, server).Handshake() // the client has the error too
	}()
	c := tls.Client(near, client)
	err := c.Handshake()
	near.Close()
	<-served
	return c.ConnectionState(), err
}

// TestSuites: each of our ends agrees with another end on TLS 1.3, or on TLS 1.2
// with AEAD, and on nothing else.
func TestSuites(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rig.Must(t, err)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	rig.Must(t, err)
	for name, key := range map[string]crypto.Signer{"ECDSA": ec, "RSA": rs} {
		certificate, roots := certify(t, key)
		for _, tt := range []struct {
			name    string
			version uint16   // the highest that the other end speaks; 0: the newest
			suites  []uint16 // those that the other end has for TLS 1.2; nil: the default
			ok      bool
		}{
			{"today", 0, nil, true},
			{"1.2", tls.VersionTLS12, nil, true},
			{"1.2 with AES-128", tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}, true},
			{"1.2 with AES-256", tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, true},
			{"1.2 with ChaCha20", tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305}, true},
			{"1.2 with CBC", tls.VersionTLS12, []uint16{
				tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,
				tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,
			}, false},
			{"1.2 with RSA key exchange", tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}, false},
			{"1.1", tls.VersionTLS11, nil, false},
		} {
			client := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tt.version, CipherSuites: tt.suites}
			other := &tls.Config{
				Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS10, MaxVersion: tt.version, CipherSuites: tt.suites,
			}
			for _, ends := range [][2]*tls.Config{{client, server(certificate)}, {Client(roots), other}} {
				state, err := handshake(ends[0], ends[1])
				rig.Is(t, err == nil, tt.ok, "%s, %s: %v: they agree", name, tt.name, err)
				rig.Is(t, err != nil || aead(state), true, "%s, %s: %s is AEAD", name, tt.name, tls.CipherSuiteName(state.CipherSuite))
			}
		}
	}
}

// aead reports whether a connection authenticates what it encrypts.
func aead(state tls.ConnectionState) bool {
	return state.Version == tls.VersionTLS13 || state.Version == tls.VersionTLS12 && slices.Contains(suites, state.CipherSuite)
}

// TestSuitesAreComplete: suites has every suite of TLS 1.2 that crypto/tls
// lists as secure, but for those with CBC. A release of Go that brings another
// one fails here.
func TestSuitesAreComplete(t *testing.T) {
	t.Parallel()
	for _, suite := range tls.CipherSuites() {
		cbc := slices.Contains([]uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,
			tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
		}, suite.ID)
		for12 := slices.Contains(suite.SupportedVersions, tls.VersionTLS12)
		rig.Is(t, slices.Contains(suites, suite.ID), for12 && !cbc, "%s: it is among the suites", suite.Name)
	}
}
