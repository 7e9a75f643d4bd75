// Package tlsconfig configures TLS between programs of ours, and between them
// and up-to-date services: TLS 1.3, or 1.2 with suites that authenticate what
// they encrypt (AEAD). Package httpclient does not use this package: it talks
// to servers of any age, and keeps the defaults of crypto/tls.
//
// Each call returns a new configuration, which the caller may change, except
// the list of suites, which all configurations share. The functions may be
// called at once.
package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
)

// suites are those that are allowed with TLS 1.2. CBC is left out: by default
// crypto/tls takes it when the peer offers nothing else. The suites of TLS 1.3
// are all AEAD, and crypto/tls lets nobody choose among them.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// Client returns a configuration for a client that trusts roots; nil means the
// roots of the system. The caller sets ServerName, unless its dialer does so.
func Client(roots *x509.CertPool) *tls.Config {
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, CipherSuites: suites}
}

// server returns a configuration for a server that shows certificate. It speaks
// HTTP/1.1 only, which WebSockets need.
func server(certificate tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, CipherSuites: suites, NextProtos: []string{"http/1.1"},
	}
}
