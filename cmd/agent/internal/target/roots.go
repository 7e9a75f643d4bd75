package target

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/httpclient"
)

// maxCertificates is how long a bundle of trusted roots may be, in bytes.
const maxCertificates = 4 << 20

// Untrusted adds a remedy to the error of a certificate of an unknown authority.
func Untrusted(err error, remedy string) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%w (%s)", err, remedy)
	}
	return err
}

// registryRemedy says how a client of a registry names the authority of its certificate.
const registryRemedy = "name the file of its certificate authority with --tls-ca or SSL_CERT_FILE"

// Authorities returns the certificates in a file, without the roots of the host.
func Authorities(file string) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	return roots, addRoots(roots, file)
}

func addRoots(roots *x509.CertPool, file string) error {
	bundle, err := program.ReadFile(file, maxCertificates)
	if err != nil {
		return fmt.Errorf("reading trusted roots: %w", err)
	}
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("reading trusted roots: %s holds no certificate", file)
	}
	return nil
}

// Roots returns the roots of the host and the certificates in files. Empty names are skipped. For a
// registry over plain http it returns nil, because reading the host's roots takes milliseconds.
func Roots(registry string, files ...string) (*x509.CertPool, error) {
	if strings.HasPrefix(registry, "http:") {
		return nil, nil
	}
	roots := httpclient.TrustedRoots()
	for _, file := range files {
		if file == "" {
			continue
		}
		if err := addRoots(roots, file); err != nil {
			return nil, err
		}
	}
	return roots, nil
}
