package target

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/internal/tlsconfig"
)

// TLSFlags name the certificates by which a client and the agent at a URL identify each other. The
// client's certificate has its own variables, because those of a server may be in the same
// environment.
type TLSFlags struct {
	TLSCA         string `env:"AGENT_TLS_CA" name:"tls-ca" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM) to trust for --url or --registry. Default: those of this system; for a registry also those in SSL_CERT_FILE."`
	TLSCert       string `env:"AGENT_CLIENT_TLS_CERT" name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate (PEM) for an agent that asks for one (its --tls-client-ca)."`
	TLSKey        string `env:"AGENT_CLIENT_TLS_KEY" name:"tls-key" type:"path" placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
	TLSServerName string `env:"AGENT_TLS_SERVER_NAME" name:"tls-server-name" placeholder:"NAME" help:"Name that the certificate of --url must be for. Default: the host of the URL."`
}

// CheckTLS finds flags that contradict each other. url is the URL of the agent, and registry that of
// a registry. A URL without a scheme counts as a URL with TLS.
func (f *TLSFlags) CheckTLS(url, registry string) error {
	switch {
	case *f == TLSFlags{}:
		return nil
	case url == "" && registry != "" && *f == TLSFlags{TLSCA: f.TLSCA}:
		if strings.HasPrefix(registry, "http:") {
			return fmt.Errorf("--tls-ca needs a registry with https://: %.100s has no TLS", registry)
		}
		return nil
	case url == "" && registry != "":
		return errors.New("--tls-cert, --tls-key and --tls-server-name need --url; a registry takes only --tls-ca")
	case url == "":
		return errors.New("--tls-ca needs --url or --registry; --tls-cert, --tls-key and --tls-server-name need --url")
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key must be given together")
	case strings.HasPrefix(url, "ws://") || strings.HasPrefix(url, "unix:"): // CheckURL refuses others
		return fmt.Errorf("--tls-ca, --tls-cert, --tls-key and --tls-server-name need a URL with wss://, or HOST:PORT: %.100s has no TLS", url)
	}
	return nil
}

// secure adds the scheme for TLS to a URL without a scheme, if any of the flags is set.
func (f *TLSFlags) secure(url string) string {
	if dial := DialURL(url); *f != (TLSFlags{}) && !strings.Contains(url, "://") {
		return strings.Replace(dial, "ws://", "wss://", 1)
	}
	return url
}

// or copies flags that are not set from those of a context. Certificate and key are copied
// together.
func (f *TLSFlags) or(other TLSFlags) {
	f.TLSCA, f.TLSServerName = cmp.Or(f.TLSCA, other.TLSCA), cmp.Or(f.TLSServerName, other.TLSServerName)
	if f.TLSCert == "" && f.TLSKey == "" {
		f.TLSCert, f.TLSKey = other.TLSCert, other.TLSKey
	}
}

// config returns the configuration of a client, or nil if no flag is set. The certificate is read
// now, and again for each connection, because it may be renewed.
func (f *TLSFlags) config(sys program.System) (*tls.Config, error) {
	if *f == (TLSFlags{}) {
		return nil, nil
	}
	var roots *x509.CertPool
	if f.TLSCA != "" {
		bundle, err := program.ReadFile(f.TLSCA, maxCertificates)
		if err != nil {
			return nil, err
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("%s holds no certificate", f.TLSCA)
		}
	}
	config := tlsconfig.Client(roots)
	config.ServerName = f.TLSServerName
	if f.TLSCert == "" {
		return config, nil
	}
	if err := secretfile.Report(func(warning string) { program.Complain(sys.Stderr, warning) }, f.TLSKey); err != nil {
		return nil, err
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", f.TLSCert, f.TLSKey, err)
		}
		return &pair, nil
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return config, nil
}
