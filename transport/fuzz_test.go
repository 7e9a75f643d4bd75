package transport

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// FuzzWebSocketAssembly reads script as a list of frames, three bytes and a payload
// each, and sends them over a real connection. What Read returns must be what the
// model, assemble, makes of the same frames.
func FuzzWebSocketAssembly(f *testing.F) {
	f.Add([]byte("\x81\x02\x02{}"))
	f.Add([]byte("\x01\x01\x02{\x00\x00\x03\x80\x01\x02}"))                   // fragments
	f.Add([]byte("\x01\x01\x02{\x89\x02\x05hi\x8a\x00\x00\x80\x01\x02}"))     // control frames between
	f.Add([]byte("\x82\x01\x00\xff\x81\x01\x00\xff\x81\x02\x00{}"))           // not UTF-8
	f.Add([]byte("\x81\x40\x07abc\x82\xff\x7fabc\x88\x02\x00\x03\xe8"))       // repeated payloads, close
	f.Add([]byte("\xc1\x02\x00{}\x80\x00\x00"))                               // reserved bit
	f.Add([]byte("\x01\x01\x00\xc3\x80\x01\x00\xa9\x01\x00\x00\x81\x00\x00")) // split character, nested message
	l := listen(f, Config{})
	f.Fuzz(func(t *testing.T, script []byte) {
		wire, want, drop := assemble(script)
		p := dialRaw(t, l)
		server := accept(t, l)
		go io.Copy(io.Discard, p.In) // pongs
		go func() {
			// A dropped connection may refuse the rest.
			_, _ = p.Write(wire)
			_ = p.Conn.(*net.TCPConn).CloseWrite()
		}()
		for _, message := range want {
			wantRead(t, server, string(message))
		}
		got, err := server.Read()
		rig.Is(t, err == nil, false, "got %.40q behind the end", got)
		rig.Is(t, errors.Is(err, io.EOF), !drop, "io.EOF at the end: %v", err)
		server.Close()
		p.Close()
	})
}

// assemble is the model: the bytes to send, the messages before the end, and
// whether the end is anything but an orderly one.
func assemble(script []byte) (wire []byte, messages [][]byte, drop bool) {
	var partial []byte
	kind := byte(0) // opcode of the message under way
	for len(script) >= 3 {
		first, n, repeat := script[0], min(int(script[1]), len(script)-3), int(script[2])
		payload := bytes.Repeat(script[3:3+n], 1+repeat%8*97)
		script = script[3+n:]
		if len(wire) > 4<<20 {
			break
		}
		wire = append(wire, rawclient.Frame(first, payload)...)
		fin, opcode := first&0x80 != 0, first&0x0f
		switch {
		case first&0x70 != 0:
			return wire, messages, true
		case opcode == 0x9 || opcode == 0xa:
			if !fin || len(payload) > 125 {
				return wire, messages, true
			}
			continue
		case opcode == 0x8:
			return wire, messages, !fin || !validClose(payload)
		case opcode == 0 && kind == 0, opcode != 0 && kind != 0, opcode > 2:
			return wire, messages, true
		case opcode != 0:
			kind, partial = opcode, nil
		}
		partial = append(partial, payload...)
		if fin {
			if kind == 1 && !utf8.Valid(partial) {
				return wire, messages, true
			}
			messages, kind = append(messages, partial), 0
		}
	}
	return wire, messages, kind != 0
}

// validClose follows RFC 6455, 7.4, and the registry of close codes.
func validClose(payload []byte) bool {
	if len(payload) < 2 {
		return len(payload) < 126
	}
	code := int(payload[0])<<8 | int(payload[1])
	known := code >= 1000 && code <= 1003 || code >= 1007 && code <= 1013 || code >= 3000 && code <= 4999
	return known && len(payload) <= 125 && utf8.Valid(payload[2:])
}

// FuzzStdio compares the lines that come out with a plain split of the input,
// however the input is cut into reads.
func FuzzStdio(f *testing.F) {
	f.Add([]byte("{}\n[]\r\n\n \t\nlast"), uint16(3))
	f.Add([]byte("\r\n\r\r\n\n"), uint16(1))
	f.Add(bytes.Repeat([]byte("0123456789"), 20000), uint16(4097))
	f.Fuzz(func(t *testing.T, input []byte, cut uint16) {
		var want []string
		for line := range strings.Lines(string(input)) {
			line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
			if strings.TrimSpace(line) != "" {
				want = append(want, line)
			}
		}
		c := stdioOver(&cutReader{bytes.NewReader(input), int(cut) + 1})
		for _, line := range want {
			wantRead(t, c, line)
		}
		rig.Is(t, rig.Err(c.Read()), io.EOF, "at the end")
	})
}

// cutReader returns at most n bytes a Read.
type cutReader struct {
	r io.Reader
	n int
}

func (c *cutReader) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.n)]) }

// FuzzJWT checks that no token passes but those with a signature over exactly
// their bytes, an exp that is not over, and one way to be written.
func FuzzJWT(f *testing.F) {
	f.Add(`{"alg":"HS256"}`, `{"exp":1700000100}`, "")
	f.Add(`{"alg":"HS256"}`, `{"exp":1,"nbf":2,"iss":"i","aud":["a"]}`, ".")
	f.Add(`{"alg":"none"}`, `{"exp":1700000100}`, "=")
	f.Add(`{"alg":"HS256","alg":"none"}`, `{"exp":1e9,"exp":null}`, "\n")
	v := &jwtVerifier{secret: []byte(testSecret), audience: "a"}
	lax := &jwtVerifier{secret: []byte(testSecret)}
	f.Fuzz(func(t *testing.T, header, payload, tail string) {
		signed := sign(header, payload, testSecret, sha256.New)
		laxErr := verdict(lax, signed, now)
		rig.Is(t, verdict(v, signed, now) == nil && laxErr != nil, false, "%q passes with an audience, %v without", signed, laxErr)
		if laxErr == nil && verdict(lax, signed, 1<<62) == nil && !strings.Contains(payload, "exp") && !strings.Contains(payload, `\u`) {
			t.Fatalf("%q passes without exp", signed)
		}
		rig.Is(t, tail != "" && verdict(lax, signed+tail, now) == nil, false, "%q passes with %q behind it", signed, tail)
		forged := sign(header, payload, strings.ToUpper(testSecret), sha256.New)
		for _, token := range []string{forged, header + "." + payload + "." + tail, tail} {
			rig.Is(t, verdict(lax, token, now) == nil, false, "forged token %q passes", token)
		}
		a := &Authenticator{jwt: lax}
		rig.Is(t, laxErr == nil && check(a, "Bearer "+signed) != nil, false, "%q passes alone, and not in a header", signed)
	})
}
