// Package tlsconfig has the TLS between programs of ours, and between them and
// services of today: TLS 1.3, or 1.2 with suites that authenticate what they
// encrypt. Package httpclient talks to servers of any age and keeps the
// defaults of crypto/tls.
package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
)

// suites leaves out CBC, which crypto/tls takes from a peer that offers nothing
// else. It is about TLS 1.2 only: those of TLS 1.3 are all AEAD, and cannot be
// chosen.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// Client returns a configuration that trusts roots; nil are those of the
// system.
func Client(roots *x509.CertPool) *tls.Config {
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, CipherSuites: suites}
}

// Server returns a configuration that shows certificate and speaks HTTP/1.1,
// which WebSockets need.
func Server(certificate tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, CipherSuites: suites, NextProtos: []string{"http/1.1"},
	}
}
