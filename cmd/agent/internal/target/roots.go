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

// Untrusted completes an error about a certificate whose authority is unknown with what names one.
func Untrusted(err error, remedy string) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("%w (%s)", err, remedy)
	}
	return err
}

// registryRemedy is how clients of a registry name its authority.
const registryRemedy = "the variable SSL_CERT_FILE names the file with its authority"

// Authorities returns those in a file, and no others.
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

// Roots returns the roots of the host and those in files, of which empty
// names are skipped. For a registry over plain http it returns nil: reading the
// host's roots takes milliseconds, and nobody would use them.
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
