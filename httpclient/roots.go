package httpclient

import (
	"crypto/x509"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// TrustedRoots returns the roots of the system, or those compiled in when the
// system has none, as in a container made from scratch. Those are parsed here,
// when they are needed: the package that installs them by itself would do that
// at every start.
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
			continue // what this version of Go cannot read it does not trust
		}
		if root.Constraint == nil {
			pool.AddCert(cert)
		} else {
			pool.AddCertWithConstraint(cert, root.Constraint)
		}
	}
	return pool
}
