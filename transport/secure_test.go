package transport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/loglines"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/test/rig"
)

// authority signs certificates.
type authority struct {
	t     testing.TB
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	roots *x509.CertPool
}

var serial atomic.Int64

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, roots: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: "CA of the test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.sign(template, template)
	a.roots.AddCert(a.cert)
	return a
}

// sign makes a key and a certificate for it.
func (a *authority) sign(template, parent *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key := rig.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	signer := key
	if a.key != nil {
		signer = a.key
	}
	der := rig.Value(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	cert := rig.Value(x509.ParseCertificate(der))
	return cert, key
}

// issue makes a certificate, which ends then, and for which adapt may choose more.
func (a *authority) issue(ends time.Duration, adapt func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(ends),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if adapt != nil {
		adapt(template)
	}
	cert, key := a.sign(template, a.cert)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// write writes a certificate and its key into a folder, each by renaming.
func (a *authority) write(dir string, c tls.Certificate) {
	a.t.Helper()
	key := rig.Value(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: key}, "ca": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		path := filepath.Join(dir, name)
		rig.Must(a.t, os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600))
		rig.Must(a.t, os.Rename(path+".new", path))
	}
}

// certified returns an authority and a folder with a certificate of a server.
func certified(t testing.TB) (*authority, string) {
	t.Helper()
	a, dir := newAuthority(t), t.TempDir()
	a.write(dir, a.issue(time.Hour, nil))
	return a, dir
}

// server returns a configuration by files; ca is "" or the file of those who sign clients.
func server(t testing.TB, dir string, ca string) *tls.Config {
	t.Helper()
	files := tlsconfig.Files{Certificate: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: ca}
	config, err := files.Server(slog.New(slog.DiscardHandler))
	rig.Must(t, err)
	return config
}

// record is a log that can be read while it is written.
type record struct{ rig.Transcript }

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// await waits until the log has a text.
func (r *record) await(t *testing.T, text string) {
	t.Helper()
	rig.Until(t, "the log has "+text, func() bool { return strings.Contains(r.String(), text) })
}

const wssAny = "wss://127.0.0.1:0"

// largeMessages sends messages both ways, whole and in parts. A part that begins like a close frame
// is none.
func largeMessages(t *testing.T, client, server *WebSocket) {
	t.Helper()
	// U+0888 is three bytes, of which the last is 0x88: wherever a message is cut, some part
	// of these begins with one.
	for shift := range 3 {
		message := []byte(strings.Repeat("x", shift) + strings.Repeat("\u0888", 100<<10))
		for from, to := range map[*WebSocket]*WebSocket{client: server, server: client} {
			wrote := make(chan error, 2)
			go func() {
				wrote <- from.Write(message)
				wrote <- from.WriteParts(len(message), slices.Chunk(message, 4097))
			}()
			for range 2 {
				wantRead(t, to, string(message))
				rig.Must(t, <-wrote)
			}
		}
	}
}

func TestSecureURL(t *testing.T) {
	t.Parallel()
	_, dir := certified(t)
	config := server(t, dir, "")
	for _, tt := range []struct {
		config Config
		want   string // part of the error; "" for none
	}{
		{Config{URL: wssAny, TLS: config}, ""},
		{Config{URL: wssAny}, "needs a certificate"},
		{Config{URL: "ws://127.0.0.1:0", TLS: config}, "want wss://"},
		{Config{URL: "wss://localhost:0", TLS: config}, "numeric address"},
		{Config{URL: unixURL(t), TLS: config}, "a UNIX socket has no TLS"},
		{Config{URL: "wss://0.0.0.0:0", TLS: config}, "no authentication is configured"},
		{Config{URL: "wss://0.0.0.0:0", TLS: server(t, dir, filepath.Join(dir, "ca"))}, ""},
	} {
		l, err := Listen(tt.config)
		rig.Says(t, err, tt.want, "%s", tt.config.URL)
		if err == nil {
			rig.Is(t, strings.HasPrefix(l.URL(), "wss://"), true, "it listens at %s", l.URL())
			_ = l.Close()
		}
	}
}

// TestRenewal: while clients come and go without a pause, the certificate is renewed again and
// again, and none of them is refused. The last ones see the last certificate.
func TestRenewal(t *testing.T) {
	t.Parallel()
	a, dir := certified(t)
	l := listen(t, Config{URL: wssAny, TLS: server(t, dir, "")})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				message, err := conn.Read()
				if err == nil {
					_ = conn.Write(message)
				}
				_, _ = conn.Read() // until the client ends
				_ = conn.Close()
			}()
		}
	}()
	var renewals atomic.Int32
	var dialed atomic.Int32
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for renewals.Load() < 20 {
				c := dialTo(t, l, DialConfig{TLS: tlsconfig.Client(a.roots)})
				rig.Check(t, c.Write([]byte("hello")))
				wantRead(t, c, "hello")
				_ = c.Close()
				dialed.Add(1)
			}
		})
	}
	var last tls.Certificate
	for before := int32(0); renewals.Load() < 20 && !t.Failed(); time.Sleep(time.Millisecond) {
		if now := dialed.Load(); now >= before+4 {
			before = now
			last = a.issue(time.Hour, nil)
			a.write(dir, last)
			renewals.Add(1)
		}
	}
	clients.Wait()
	// Between the files of a pair the former one is shown, and looked at again after a second.
	rig.Until(t, "the last certificate is shown", func() bool {
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: a.roots})
		rig.Must(t, err)
		defer conn.Close()
		return bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, last.Certificate[0])
	})
	t.Logf("%d connections, %d renewals", dialed.Load(), renewals.Load())
}

// TestClientCertificates: who has a certificate of the authority is let in under its name, and all
// others are refused by the handshake, with a line in the log.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	a, other, dir := newAuthority(t), newAuthority(t), t.TempDir()
	a.write(dir, a.issue(time.Hour, nil))
	var log record
	l := listen(t, Config{URL: wssAny, TLS: server(t, dir, filepath.Join(dir, "ca")), Log: log.logger()})
	named := func(name pkix.Name) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject = name }
	}
	dialWith := func(certificates ...tls.Certificate) (*WebSocket, error) {
		config := tlsconfig.Client(a.roots)
		config.Certificates = certificates
		return Dial(t.Context(), l.URL(), DialConfig{TLS: config})
	}
	for want, adapt := range map[string]func(*x509.Certificate){
		"cert:CN=ci":                    named(pkix.Name{CommonName: "ci"}),
		"cert:CN=uid:0,O=sub:alice":     named(pkix.Name{CommonName: "uid:0", Organization: []string{"sub:alice"}}),
		`cert:CN=a\,O=b`:                named(pkix.Name{CommonName: "a,O=b"}),
		"cert:URI:spiffe://test/agents": func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/agents"}} },
		"cert:DNS:host.test":            func(c *x509.Certificate) { c.DNSNames = []string{"host.test"} },
		"cert:SHA256:":                  nil,
		// Two that have one organization in common are not the same client.
		"cert:URI:spiffe://test/alice": func(c *x509.Certificate) {
			c.Subject, c.URIs = pkix.Name{Organization: []string{"SPIRE"}}, []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/alice"}}
		},
		"cert:DNS:alice.test": func(c *x509.Certificate) {
			c.Subject, c.DNSNames = pkix.Name{Organization: []string{"SPIRE"}}, []string{"alice.test"}
		},
		"cert:CN=alice,CN=mallory": func(c *x509.Certificate) {
			commonName := asn1.ObjectIdentifier{2, 5, 4, 3}
			c.Subject = pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{{Type: commonName, Value: "mallory"}, {Type: commonName, Value: "alice"}}}
		},
	} {
		c, err := dialWith(a.issue(time.Hour, adapt))
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		server := accept(t, l)
		if got := server.Principal(); got != want && !(adapt == nil && strings.HasPrefix(got, want) && len(got) == len(want)+64) {
			t.Errorf("the client is %q, want %q", got, want)
		}
		rig.Is(t, strings.HasPrefix(server.Remote(), "127.0.0.1:"), true, "it is at %s", server.Remote())
		_ = c.Close()
	}
	for name, tt := range map[string]struct {
		certificates []tls.Certificate
		logged       string
	}{
		"none":            {nil, "client didn't provide a certificate"},
		"of another":      {[]tls.Certificate{other.issue(time.Hour, nil)}, "certificate signed by unknown authority"},
		"expired":         {[]tls.Certificate{a.issue(-time.Hour, nil)}, "certificate has expired"},
		"of servers only": {[]tls.Certificate{a.issue(time.Hour, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] })}, "incompatible key usage"},
	} {
		c, err := dialWith(tt.certificates...)
		if err == nil {
			_ = c.Close()
		}
		_, ok := errors.AsType[*HandshakeError](err)
		rig.Is(t, ok, true, "%s: %v is the server's reason", name, err)
		log.await(t, tt.logged)
	}
	if text := log.String(); !strings.Contains(text, `"level":"WARN","msg":"client refused","remote":"127.0.0.1:`) || strings.Contains(text, "subject") {
		t.Error(text)
	}
}

// TestSecureStrangers: who speaks no TLS is told so, and who says nothing neither holds anybody up
// nor fills the log.
func TestSecureStrangers(t *testing.T) {
	t.Parallel()
	a, dir := certified(t)
	var log record
	l := listen(t, Config{URL: wssAny, TLS: server(t, dir, ""), Log: log.logger()})
	got, _ := ask(t, l, readyz)
	rig.Is(t, fmt.Sprint(got.Status, " ", got.Body), "400 this listener speaks TLS, use wss://\r\n", "without TLS")
	log.await(t, errPlain.Error())
	for range share.Strangers() + 8 { // they stay in the middle of their handshake
		conn := rig.Value(net.Dial("tcp", l.Addr().String()))
		defer conn.Close()
		rig.Must(t, rig.Err(conn.Write([]byte{22, 3, 1})))
	}
	begun := time.Now()
	dialTo(t, l, DialConfig{TLS: tlsconfig.Client(a.roots), HandshakeTimeout: patience})
	t.Logf("beside a crowd of %d: %v", share.Strangers(), time.Since(begun))
	rig.Is(t, l.lobby.Len() <= share.Strangers(), true, "seats that are taken: %v, at most %v", l.lobby.Len(), share.Strangers())
	client := http.Client{Transport: &http.Transport{TLSClientConfig: tlsconfig.Client(a.roots)}}
	response, err := client.Get(strings.Replace(l.URL(), "wss:", "https:", 1) + "/readyz")
	rig.Must(t, err)
	body, err := io.ReadAll(response.Body)
	rig.Must(t, err, response.Body.Close())
	rig.Is(t, fmt.Sprint(response.StatusCode, len(body)), "200 0", "/readyz: status, bytes")
}

// TestRefusals: what the log says of refused clients, and how much.
func TestRefusals(t *testing.T) {
	t.Parallel()
	auth, err := AuthOptions{Mode: "capability-token", TokenFile: writeFile(t, "opensesame")}.Authenticator()
	rig.Must(t, err)
	var log record
	l := listen(t, Config{Auth: auth, Log: log.logger()})
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\n" + upgradeHeaders + "Authorization: Bearer hunter2\r\n\r\n":                                     `"level":"WARN","msg":"client refused","remote":"127.0.0.1:`,
		"GET / HTTP/1.1\r\nHost: x\r\n" + upgradeHeaders + "\r\n":                                                                      `"reason":"missing websocket bearer token","status":401`,
		"GET /?token=hunter2 HTTP/1.1\r\nHost: x\r\n\r\n":                                                                              `"reason":"Connection header did not include 'upgrade'","status":400`,
		"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://hunter2\r\n" + upgradeHeaders + "\r\n":                                            `"status":403`,
		"GET /hunter2 HTTP/1.1\r\nHost: x\r\n\r\n":                                                                                     `"level":"DEBUG","msg":"client refused"`,
		"GET / HTTP/1.1\r\nHost: x\r\n" + strings.Replace(upgradeHeaders, "dGhl", "!", 1) + "Authorization: Bearer opensesame\r\n\r\n": "is not the base64 of 16 bytes",
	} {
		ask(t, l, request)
		log.await(t, want)
	}
	for range 2 * loglines.Max {
		l.refused.add(RefusedToken, slog.LevelWarn, "x", "y")
	}
	rig.Must(t, l.Close())
	text := log.String()
	rig.Is(t, strings.Contains(text, "hunter2") || strings.Contains(text, "opensesame"), false, "the log has a secret:\n%s", text)
	more := regexp.MustCompile(`"msg":"more clients refused","count":\d+,"interval":\d+,"kind":"token"`)
	rig.Is(t, more.MatchString(text), true, "the end says that more were refused:\n%s", text)
}
