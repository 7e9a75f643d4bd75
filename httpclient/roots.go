package httpclient

import (
	"crypto/x509"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// TrustedRoots returns the roots of the system, or the ones compiled in when it has none, as in a container made from scratch.
// The package that installs the latter by itself would parse them at every start.
func TrustedRoots() *x509.CertPool {
	pool, err := x509.SystemCertPool()
	if err == nil && !pool.Equal(x509.NewCertPool()) {
		return pool
	}
	return bundledRoots()
}

func bundledRoots() *x509.CertPool {
	pool := x509.NewCertPool()
	for root := range bundle.Roots() {
		cert, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			continue // one that this Go cannot read is not to be trusted
		}
		if root.Constraint == nil {
			pool.AddCert(cert)
		} else {
			pool.AddCertWithConstraint(cert, root.Constraint)
		}
	}
	return pool
}
