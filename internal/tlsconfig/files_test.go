package tlsconfig

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// pair makes a certificate, and writes it and its key into a folder by renaming, one after the
// other.
func pair(t *testing.T, dir string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rig.Must(t, err)
	certificate, roots := certify(t, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	rig.Must(t, err)
	replace(t, filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}))
	replace(t, filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return certificate, roots
}

func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	rig.Must(t, os.WriteFile(path+".new", text, 0o600))
	rig.Must(t, os.Rename(path+".new", path))
}

func files(dir string) Files {
	return Files{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
}

// shows fails a test in which a server does not show a certificate.
func shows(t *testing.T, server *tls.Config, certificate tls.Certificate, which string) {
	t.Helper()
	state, err := handshake(&tls.Config{InsecureSkipVerify: true}, server)
	rig.Must(t, err)
	rig.Is(t, bytes.Equal(state.PeerCertificates[0].Raw, certificate.Certificate[0]), true, "the %s certificate is shown", which)
}

// TestRenewed: a new certificate is shown at once, also if it comes within the same moment, and
// the former one as long as the new one cannot be used, of which the log has one line.
func TestRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, _ := pair(t, dir)
	var text bytes.Buffer
	config, err := files(dir).Server(slog.New(slog.NewTextHandler(&text, nil)))
	rig.Must(t, err)
	shows(t, config, first, "first")
	second, _ := pair(t, dir)
	shows(t, config, second, "second")
	rig.Is(t, NotAfter(config).IsZero(), false, "the end of the certificate is not known")
	text.Reset()
	replace(t, files(dir).Key, []byte("no key"))
	for range 3 {
		shows(t, config, second, "second, instead of one without its key,")
	}
	rig.Is(t, strings.Count(text.String(), "level=WARN"), 1, "%s\nlines", &text)
	third, _ := pair(t, dir)
	shows(t, config, third, "third")
}

// TestCheckedAgain: files that must not be used are not, also if that comes with a renewal.
func TestCheckedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, _ := pair(t, dir)
	f := files(dir)
	f.Check = func(path string) error {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o022 != 0 {
			return errors.New("others can change it")
		}
		return nil
	}
	config, err := f.Server(slog.New(slog.DiscardHandler))
	rig.Must(t, err)
	second, _ := pair(t, dir)
	rig.Must(t, os.Chmod(f.Key, 0o666))
	shows(t, config, first, "first, while others can change the key of the second,")
	rig.Must(t, os.Chmod(f.Key, 0o600))
	shows(t, config, second, "second")
}

// TestUnchanged: files that stay are not read again once they are settled.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pair(t, dir)
	old := time.Now().Add(-time.Hour)
	for _, path := range files(dir).paths() {
		rig.Must(t, os.Chtimes(path, old, old))
	}
	config, err := files(dir).Server(slog.New(slog.DiscardHandler))
	rig.Must(t, err)
	before, _ := config.GetConfigForClient(nil)
	after, _ := config.GetConfigForClient(nil)
	rig.Is(t, after == before, true, "the files were not read again")
}

// TestRenewedUnderLoad: while the certificate is renewed all the time, no connection fails.
func TestRenewedUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pair(t, dir)
	config, err := files(dir).Server(slog.New(slog.DiscardHandler))
	rig.Must(t, err)
	var done atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !done.Load() {
				if _, err := handshake(&tls.Config{InsecureSkipVerify: true}, config); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		pair(t, dir)
	}
	done.Store(true)
	clients.Wait()
}

// TestClientCA: who has no certificate of the authority is refused, and one whose authority does
// not count any more too, also one that was let in before.
func TestClientCA(t *testing.T) {
	t.Parallel()
	dir, theirs, others := t.TempDir(), t.TempDir(), t.TempDir()
	_, roots := pair(t, dir)
	mine, _ := pair(t, theirs)
	stranger, _ := pair(t, others)
	f := files(dir)
	f.ClientCA = filepath.Join(theirs, "tls.crt")
	config, err := f.Server(slog.New(slog.DiscardHandler))
	rig.Must(t, err)
	client := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{mine}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	rig.Check(t, admitted(client, config))
	rig.Is(t, admitted(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{stranger}}, config) != nil, true, "a stranger is refused")
	rig.Is(t, admitted(&tls.Config{RootCAs: roots}, config) != nil, true, "a client without a certificate is refused")
	replace(t, f.ClientCA, rig.Value(os.ReadFile(filepath.Join(others, "tls.crt"))))
	rig.Is(t, admitted(client, config) != nil, true, "a client of the former authority is refused")
}

// TestWrongFiles: what cannot be used is refused at the start, with the name of the file.
func TestWrongFiles(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	pair(t, dir)
	pair(t, other)
	good := files(dir)
	large := filepath.Join(dir, "large")
	rig.Must(t, os.WriteFile(large, make([]byte, maxFile+1), 0o600))
	for name, f := range map[string]Files{
		"no file":      {Certificate: filepath.Join(dir, "none"), Key: good.Key},
		"another pair": {Certificate: good.Certificate, Key: filepath.Join(other, "tls.key")},
		"a folder":     {Certificate: good.Certificate, Key: dir},
		"large":        {Certificate: large, Key: good.Key},
		"no authority": {Certificate: good.Certificate, Key: good.Key, ClientCA: good.Key},
	} {
		_, err := f.Server(slog.New(slog.DiscardHandler))
		rig.Is(t, strings.Contains(fmt.Sprint(err), dir), true, "%s: %v names the file", name, err)
	}
}

// admitted returns the error of a client that shows a server its certificate, and wants an answer.
func admitted(client, server *tls.Config) error {
	client = client.Clone()
	client.ServerName = host
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		defer far.Close()
		_, _ = tls.Server(far, server).Write([]byte{1}) // the client sees if it fails
	}()
	_, err := tls.Client(near, client).Read(make([]byte, 1))
	return err
}
