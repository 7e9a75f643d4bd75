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

// TLSFlags say how a client and the agent at a URL show each other who they are. The variables
// of the client's certificate are not those of a server's, which may be in the same environment.
type TLSFlags struct {
	TLSCA         string `env:"AGENT_TLS_CA" name:"tls-ca" type:"path" placeholder:"FILE" help:"Authorities (PEM) that the certificate of --url has to be from. Default: those of this system."`
	TLSCert       string `env:"AGENT_CLIENT_TLS_CERT" name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate (PEM) to show to an agent that asks for one (--tls-client-ca)."`
	TLSKey        string `env:"AGENT_CLIENT_TLS_KEY" name:"tls-key" type:"path" placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
	TLSServerName string `env:"AGENT_TLS_SERVER_NAME" name:"tls-server-name" placeholder:"NAME" help:"Name that the certificate of --url has to be for, where it is not that of the URL."`
}

// CheckTLS finds flags that contradict each other. url is the agent's; without a scheme it is
// taken for one with TLS.
func (f *TLSFlags) CheckTLS(url string) error {
	switch {
	case *f == TLSFlags{}:
		return nil
	case url == "":
		return errors.New("--tls-ca, --tls-cert, --tls-key and --tls-server-name need --url")
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key need each other")
	case strings.Contains(url, "://") && !strings.HasPrefix(url, "wss://"):
		return fmt.Errorf("--tls-ca, --tls-cert, --tls-key and --tls-server-name need a URL with wss://, or HOST:PORT: %.100s has no TLS", url)
	}
	return nil
}

// secure makes a URL without a scheme one with TLS, if the flags are about TLS.
func (f *TLSFlags) secure(url string) string {
	if dial := DialURL(url); *f != (TLSFlags{}) && !strings.Contains(url, "://") {
		return strings.Replace(dial, "ws://", "wss://", 1)
	}
	return url
}

// or completes the flags with those of a context. The two of a certificate belong together.
func (f *TLSFlags) or(other TLSFlags) {
	f.TLSCA, f.TLSServerName = cmp.Or(f.TLSCA, other.TLSCA), cmp.Or(f.TLSServerName, other.TLSServerName)
	if f.TLSCert == "" && f.TLSKey == "" {
		f.TLSCert, f.TLSKey = other.TLSCert, other.TLSKey
	}
}

// config is the configuration of a client; nil if the flags say nothing. The certificate is read
// now, and again for each connection, so that one that is renewed counts.
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
