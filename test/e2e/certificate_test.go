package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// certificates counts those that certify has made. Each has another number, and is valid for an
// hour longer.
var certificates atomic.Int64

// certify writes a certificate for 127.0.0.1 and its key into a folder, as NAME.crt and NAME.key,
// in the place of those that were there, one after the other. It is signed by the one of another
// name, or by itself.
func certify(t *testing.T, dir, name, by string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rig.Must(t, err)
	number := certificates.Add(1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Duration(number) * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: name == by,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, any(key)
	if name != by {
		pair := certificate(t, dir, by)
		parent, signer = pair.Leaf, pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	rig.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	rig.Must(t, err)
	replace(t, filepath.Join(dir, name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	replace(t, filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// selfSigned is a certificate of certify's, and its key.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certify(t, dir, "own", "own")
	return filepath.Join(dir, "own.crt"), filepath.Join(dir, "own.key")
}

// certificate reads one that certify has written.
func certificate(t *testing.T, dir, name string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	rig.Must(t, err)
	return pair
}

// authority returns the pool of those who trust one that certify has written.
func authority(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(certificate(t, dir, name).Leaf)
	return pool
}

// replace puts a file in the place of another.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	rig.Must(t, os.WriteFile(path+".new", text, 0o600))
	rig.Must(t, os.Rename(path+".new", path))
}
