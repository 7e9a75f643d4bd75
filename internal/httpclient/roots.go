package httpclient

import (
	"crypto/x509"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// TrustedRoots returns the roots of the system, or the compiled-in roots if the system has none, as
// in a container made from scratch. Reading or parsing them takes milliseconds, so the caller
// should keep the pool.
//
// The compiled-in roots come from x509roots/fallback/bundle and not from x509roots/fallback,
// because the latter would parse them at every start of the program.
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
			continue // a root that this version of Go cannot read is not trusted
		}
		if root.Constraint == nil {
			pool.AddCert(cert)
		} else {
			pool.AddCertWithConstraint(cert, root.Constraint)
		}
	}
	return pool
}
