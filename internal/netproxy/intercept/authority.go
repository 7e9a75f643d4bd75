package intercept

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

const (
	// authorityYears is the validity of an authority. An authority ends with the process, and a
	// process may run for long.
	authorityYears = 10
	leafTime       = 30 * 24 * time.Hour
	// leafRenewal is the rest of the validity below which a new certificate is made.
	leafRenewal = leafTime / 2
	// skew is the tolerance for a command's clock that is behind.
	skew = 24 * time.Hour
	// maxLeaves is the number of certificates that are kept. Above this number an arbitrary
	// certificate is dropped.
	maxLeaves = 256
)

// An Authority makes certificates for any host. Its methods may be called concurrently.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	bundle      []byte

	leafKey *ecdsa.PrivateKey // the key of all certificates

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by host
}

// NewAuthority makes an authority. trusted has the other certificates that the command trusts, in
// PEM.
func NewAuthority(trusted []byte) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "agent network proxy, " + serial().Text(36)[:8]},
		NotBefore:             time.Now().Add(-skew),
		NotAfter:              time.Now().AddDate(authorityYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	bundle := bytes.TrimRight(trusted, "\n")
	if len(bundle) > 0 {
		bundle = append(bytes.Clone(bundle), '\n')
	}
	bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	return &Authority{certificate: certificate, key: key, bundle: bundle, leafKey: leafKey, leaves: map[string]*tls.Certificate{}}, nil
}

// Bundle returns the certificates that a command has to trust, in PEM: those given to
// [NewAuthority], and the authority's. The caller writes the bundle to a place that the command can
// read, and must not modify the returned slice.
func (a *Authority) Bundle() []byte { return a.bundle }

// Config returns the TLS configuration of a server in place of host. A greeting that names another
// host fails.
func (a *Authority) Config(host string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		NextProtos:             []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true, // a tunnel has one connection
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if hello.ServerName != "" {
				if name, err := rules.Host(hello.ServerName); err != nil || name != host {
					return nil, errOtherName
				}
			}
			return a.leaf(host)
		},
	}
}

var errOtherName = errors.New("intercepting: the greeting of TLS names another host than the tunnel")

// leaf returns a certificate for a host.
func (a *Authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if c := a.leaves[host]; c != nil && c.Leaf.NotAfter.Sub(now) > leafRenewal {
		return c, nil
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: host[:min(len(host), maxCommonName)]},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(leafTime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	if len(a.leaves) >= maxLeaves {
		for other := range a.leaves {
			delete(a.leaves, other)
			break
		}
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}
	a.leaves[host] = c
	return c, nil
}

// maxCommonName is the limit of X.509 for a common name.
const maxCommonName = 64

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b)
}
