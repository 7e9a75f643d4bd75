package target

import (
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/httpclient"
)

// maxCertificates is how long a bundle of trusted roots may be, in bytes.
const maxCertificates = 4 << 20

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
		bundle, err := program.ReadFile(file, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("reading trusted roots: %w", err)
		}
		if !roots.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("reading trusted roots: %s holds no certificate", file)
		}
	}
	return roots, nil
}
