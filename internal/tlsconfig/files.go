package tlsconfig

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/paths"
)

// maxFile is how long a file with certificates or a key may be, in bytes.
const maxFile = 1 << 20

// Files are those of a server, in PEM.
type Files struct {
	Certificate string // with those of its intermediates
	Key         string
	ClientCA    string // whose certificates clients have to show; "" asks for none

	// Check says why a file must not be used, each time before it is read; nil: all may.
	Check func(path string) error
}

// Server returns the configuration of a server that uses the files, and reads them again when
// they have changed: looked at when a client connects, so there is nothing to close. Connections
// that are open stay as they are. What cannot be used, such as a certificate whose key is still to
// be written, is logged once, and the former files go on to count. An error is that of the first
// reading.
func (f Files) Server(log *slog.Logger) (*tls.Config, error) {
	r := &reader{files: f, log: log}
	if err := r.read(); err != nil {
		return nil, err
	}
	config := r.config.Clone() // a configuration that leads to itself is never freed
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.newest(), nil }
	return config, nil
}

// NotAfter is when the certificate ends that is shown now by a configuration of [Files.Server].
func NotAfter(config *tls.Config) time.Time {
	if config.GetConfigForClient != nil {
		config, _ = config.GetConfigForClient(nil) // which never fails
	}
	return config.Certificates[0].Leaf.NotAfter
}

// reader has the files as they were last read.
type reader struct {
	files Files
	log   *slog.Logger

	mu     sync.Mutex
	config *tls.Config
	sum    [sha256.Size]byte // of what was read
	state  []paths.State
	failed string // why they could not be used; "" if they could
}

// newest returns the configuration that the files say now.
func (r *reader) newest() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.state, paths.State.Changed) {
		return r.config
	}
	was := r.sum
	if err := r.read(); err != nil {
		if err.Error() != r.failed {
			r.failed = err.Error()
			r.log.Warn("the certificate cannot be read again, the former one is still shown", "error", err)
		}
		return r.config
	}
	r.failed = ""
	about := []any{"file", r.files.Certificate, "not_after", r.config.Certificates[0].Leaf.NotAfter}
	switch {
	case r.sum == was:
	case r.config.Certificates[0].Leaf.NotAfter.Before(time.Now()):
		r.log.Warn("the certificate was read again, and has expired", about...)
	default:
		r.log.Info("the certificate was read again", about...)
	}
	return r.config
}

func (f Files) paths() []string {
	paths := []string{f.Certificate, f.Key}
	if f.ClientCA != "" {
		paths = append(paths, f.ClientCA)
	}
	return paths
}

// read reads the files. If they cannot be used the configuration stays.
func (r *reader) read() error {
	names := r.files.paths()
	r.state = nil
	for _, path := range names { // before they are read: what changes since is seen next time
		r.state = append(r.state, paths.Look(path))
	}
	var texts [][]byte
	all := sha256.New()
	for _, path := range names {
		text, err := r.files.readFile(path)
		if err != nil {
			return err
		}
		texts = append(texts, text)
		_, _ = all.Write(text) // it never fails
	}
	certificate, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", r.files.Certificate, r.files.Key, err)
	}
	config := server(certificate)
	if r.files.ClientCA != "" {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(texts[2]) {
			return fmt.Errorf("%s: no certificate in PEM", r.files.ClientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		// A ticket would let in a client whose authority does not count any more.
		config.SessionTicketsDisabled = true
	}
	r.config, r.sum = config, [sha256.Size]byte(all.Sum(nil))
	return nil
}

func (f Files) readFile(path string) ([]byte, error) {
	if f.Check != nil {
		if err := f.Check(path); err != nil {
			return nil, err
		}
	}
	return paths.ReadRegular(path, maxFile)
}
