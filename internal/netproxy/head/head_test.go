package head

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/execagent/execagent/test/rig"
)

// TestRequest: what is accepted, and as what.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"GET / HTTP/1.1\r\n\r\n", `GET "/" 1 [] 0`},
		{"\r\nGET /a?b HTTP/1.0\r\nA:b\r\n\r\n", `GET "/a?b" 0 ["A"="b"] 0`},
		{"PUT http://a/ HTTP/1.1\r\nhost: \t a \t\r\nX: a  b\r\ncontent-length: 7\r\n\r\n", `PUT "http://a/" 1 ["host"="a" "X"="a  b" "content-length"="7"] 7`},
		{"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n", `POST "/" 1 ["Transfer-Encoding"="Chunked"] -1`},
		{"M-SEARCH / HTTP/1.1\r\nX: \xff\r\nEmpty:\r\n\r\n", `M-SEARCH "/" 1 ["X"="\xff" "Empty"=""] 0`},
	} {
		for _, src := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
			q, err := NewReader(src).Request()
			if err != nil {
				t.Errorf("%q: %v", c.in, err)
				continue
			}
			var fields []string
			for _, f := range q.Fields {
				fields = append(fields, fmt.Sprintf("%q=%q", f.Name, f.Value))
			}
			rig.Is(t, fmt.Sprintf("%s %q %d %v %d", q.Method, q.Target, q.Minor, fields, q.Length), c.want, "%q", c.in)
		}
	}
}

// malformed are requests that are refused, each with what the error says.
var malformed = []struct{ name, in, says string }{
	{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", "without CR"},
	{"bare LF in the fields", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "without CR"},
	{"bare LF at the end", "GET / HTTP/1.1\r\nHost: a\r\n\n", "without CR"},
	{"bare CR", "GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n", "control character"},
	{"NUL", "GET / HTTP/1.1\r\nA: \x00\r\n\r\n", "control character"},
	{"folded", "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "no name"},
	{"folded before the first", "GET / HTTP/1.1\r\n A: b\r\n\r\n", "no name"},
	{"space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", "no name"},
	{"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", "no name"},
	{"no name", "GET / HTTP/1.1\r\n: a\r\n\r\n", "no name"},
	{"a name outside ASCII", "GET / HTTP/1.1\r\nH\xc3\xb6st: a\r\n\r\n", "no name"},
	{"two lengths", "GET / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "two lengths"},
	{"one length twice", "GET / HTTP/1.1\r\nContent-Length: 4\r\ncontent-length: 4\r\n\r\n", "two lengths"},
	{"length and chunks", "GET / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", "two lengths"},
	{"chunks and length", "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n", "two lengths"},
	{"two codings", "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked alone"},
	{"a list of lengths", "GET / HTTP/1.1\r\nContent-Length: 4, 4\r\n\r\n", "no number"},
	{"a length with a sign", "GET / HTTP/1.1\r\nContent-Length: +4\r\n\r\n", "no number"},
	{"a negative length", "GET / HTTP/1.1\r\nContent-Length: -4\r\n\r\n", "no number"},
	{"a hexadecimal length", "GET / HTTP/1.1\r\nContent-Length: 0x4\r\n\r\n", "no number"},
	{"an empty length", "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n", "no number"},
	{"a length of 2^64", "GET / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n", "no number"},
	{"a length with a 0 before it", "GET / HTTP/1.1\r\nContent-Length: 07\r\n\r\n", "no number"},
	{"many names in Connection", "GET / HTTP/1.1\r\nConnection: a" + strings.Repeat(",", maxNamed) + "\r\n\r\n", "too large"},
	{"many names in many", "GET / HTTP/1.1\r\n" + strings.Repeat("Connection: a\r\nProxy-Connection: b\r\n", maxNamed/2+1) + "\r\n", "too large"},
	{"gzip and chunks", "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "chunked alone"},
	{"another coding", "GET / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", "chunked alone"},
	{"chunks in quotes", "GET / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", "chunked alone"},
	{"identity", "GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", "chunked alone"},
	{"chunks in HTTP/1.0", "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked alone"},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not HTTP/1"},
	{"HTTP/0.9", "GET /\r\n\r\n", "METHOD TARGET VERSION"},
	{"HTTP/1.2", "GET / HTTP/1.2\r\n\r\n", "not HTTP/1"},
	{"a version in lower case", "GET / http/1.1\r\n\r\n", "not HTTP/1"},
	{"two spaces", "GET  / HTTP/1.1\r\n\r\n", "METHOD TARGET VERSION"},
	{"a space in the target", "GET /a b HTTP/1.1\r\n\r\n", "not HTTP/1"},
	{"a tab in the target", "GET /a\tb HTTP/1.1\r\n\r\n", "no target has"},
	{"a fragment", "GET /a#b HTTP/1.1\r\n\r\n", "no target has"},
	{"a method that is no token", "G(T / HTTP/1.1\r\n\r\n", "METHOD TARGET VERSION"},
	{"TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\n", "without CR"},
	{"two empty lines", "\r\n\r\nGET / HTTP/1.1\r\n\r\n", "METHOD TARGET VERSION"},
	{"nothing but an end", "GET / HTTP/1.1\r\nHost:", "unexpected EOF"},
	{"too many fields", "GET / HTTP/1.1\r\n" + strings.Repeat("a:\r\n", maxFields+1) + "\r\n", "too large"},
	{"a megabyte", "GET / HTTP/1.1\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", "too large"},
	{"a megabyte of fields", "GET / HTTP/1.1\r\n" + strings.Repeat("A: "+strings.Repeat("a", 1<<10)+"\r\n", 1<<10) + "\r\n", "too large"},
}

func TestMalformedRequest(t *testing.T) {
	t.Parallel()
	for _, c := range malformed {
		_, err := NewReader(strings.NewReader(c.in)).Request()
		rig.Is(t, strings.Contains(fmt.Sprint(err), c.says), true, "%s: %v has %q", c.name, err, c.says)
	}
	rig.Is(t, rig.Err(NewReader(strings.NewReader("")).Request()), io.EOF, "no byte")
}

// TestLimits: a head of maxHead bytes is read, and one byte more is not.
func TestLimits(t *testing.T) {
	t.Parallel()
	const frame = "GET / HTTP/1.1\r\nA: \r\n\r\n"
	for extra, want := range map[int]error{0: nil, 1: ErrTooLarge} {
		in := strings.Replace(frame, "A: ", "A: "+strings.Repeat("a", maxHead-len(frame)+extra), 1)
		rig.Is(t, rig.Err(NewReader(strings.NewReader(in+"more")).Request()), want, "%d bytes", len(in))
	}
}

// TestRoom: readers that share room take it for large heads alone, and give it back.
func TestRoom(t *testing.T) {
	t.Parallel()
	small := "GET / HTTP/1.1\r\n\r\n"
	large := "GET / HTTP/1.1\r\nA: " + strings.Repeat("a", 2*room) + "\r\n\r\n"
	shared := NewRoom(3 * room) // for one head in a buffer of 4 times the usual size
	a := NewReader(strings.NewReader(large + small)).Within(shared)
	rig.Must(t, rig.Err(a.Request()))
	for in, want := range map[string]error{small: nil, large: ErrTooLarge} {
		b := NewReader(strings.NewReader(in)).Within(shared)
		rig.Is(t, rig.Err(b.Request()), want, "%d bytes beside a large head", len(in))
		b.Release()
	}
	rig.Must(t, rig.Err(a.Request()))
	a.Trim()
	rig.Is(t, shared.left.Load(), 3*room, "bytes that are left")
	rig.Is(t, len(a.Buffered()), 0, "bytes in the buffer")
	c := NewReader(strings.NewReader(large)).Within(shared)
	rig.Check(t, rig.Err(c.Request()))
	c.Release()
	rig.Is(t, shared.left.Load(), 3*room, "bytes that are left after all")
}

func TestResponse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, in string
		status     int
		length     int64
	}{
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 0},
		{"GET", "HTTP/1.0 200\r\n\r\n", 200, UntilClose},
		{"GET", "HTTP/1.1 204 \r\nContent-Length: 5\r\n\r\n", 204, 0},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, 0},
		{"GET", "HTTP/1.1 100 Continue\r\n\r\n", 100, 0},
		{"GET", "HTTP/1.1 999 \r\nTransfer-Encoding: chunked\r\n\r\n", 999, Chunked},
	} {
		a, err := NewReader(strings.NewReader(c.in)).Response(c.method)
		rig.Must(t, err)
		rig.Is(t, a.Status, c.status, "%q: status", c.in)
		rig.Is(t, a.Length, c.length, "%q: length", c.in)
	}
	for _, in := range []string{
		"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 000 OK\r\n\r\n", "HTTP/1.1\r\n\r\n",
		"HTTP/2 200 OK\r\n\r\n", "ICY 200 OK\r\n\r\n", "HTTP/1.1 200 O\x00K\r\n\r\n", "HTTP/1.1 200 OK\n\n", "",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		rig.Is(t, rig.Err(NewReader(strings.NewReader(in)).Response("GET")) != nil, true, "%q is refused", in)
	}
}

// TestBody: a body ends where its length says, and what follows is the next message.
func TestBody(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", sparse/8)
	for _, c := range []struct {
		name, in string
		length   int64
		want     string
		err      bool
	}{
		{"none", "next", 0, "", false},
		{"length", "bodynext", 4, "body", false},
		{"short", "bod", 4, "bod", true},
		{"long", long + "next", int64(len(long)), long, false},
		{"long and short", long, int64(len(long)) + 1, long, true},
		{"chunks", "2;a=b\r\nbo\r\n02\r\ndy\r\n0\r\nTrailer: x\r\n\r\nnext", Chunked, "body", false},
		{"no chunk", "0\r\n\r\nnext", Chunked, "", false},
		{"a chunk of the length of its digits", "A\r\n0123456789\r\n0\r\n\r\nnext", Chunked, "0123456789", false},
		{"until the end", long, UntilClose, long, false},
		{"chunks that end", "4\r\nbody\r\n", Chunked, "body", true},
		{"a chunk that ends", "4\r\nbo", Chunked, "bo", true},
		{"trailers that end", "0\r\nA: b\r\n", Chunked, "", true},
		{"a longer chunk", "4\r\nbodyX\r\n0\r\n\r\n", Chunked, "body", true},
		{"bare LF", "4\nbody\n0\n\n", Chunked, "", true},
		{"bare LF after a chunk", "4\r\nbody\n0\r\n\r\n", Chunked, "body", true},
		{"no size", "\r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"a size with a sign", "+4\r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"a size with 0x", "0x4\r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"a size with a space", "4 \r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"a size of 64 bits", "ffffffffffffffff\r\nbody", Chunked, "", true},
		{"a long line", "4;" + strings.Repeat("a", maxChunkLine) + "\r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"an endless line", "4;" + strings.Repeat("a", 1<<20), Chunked, "", true},
		{"trailers that are none", "0\r\nA : b\r\n\r\n", Chunked, "", true},
		{"endless trailers", "0\r\n" + strings.Repeat("A: b\r\n", 1<<16), Chunked, "", true},
	} {
		for how, forward := range map[string]func(*Body, io.Writer) error{
			"forward": func(b *Body, w io.Writer) error { return b.Forward(w, false) },
			"move":    (*Body).Move,
			"read":    func(b *Body, w io.Writer) error { _, err := io.Copy(w, iotest.OneByteReader(b)); return err },
			"chunks": func(b *Body, w io.Writer) error {
				var chunks bytes.Buffer
				err := b.Forward(&chunks, true)
				b = NewReader(&chunks).Body(Chunked)
				_, e := io.Copy(w, b)
				rig.Is(t, err != nil || e == nil && chunks.Len() == 0, true, "%s: the chunks that were written end, %v", c.name, e)
				return err
			},
		} {
			r := NewReader(strings.NewReader(c.in))
			b := r.Body(c.length)
			var got bytes.Buffer
			err := forward(b, &got)
			rig.Is(t, got.String() == c.want, true, "%s, %s: %d bytes are those", c.name, how, got.Len())
			rig.Is(t, err != nil, c.err, "%s, %s: %v: an error", c.name, how, err)
			rig.Is(t, b.Done(), !c.err, "%s, %s: done", c.name, how)
			rest, _ := io.ReadAll(r)
			rig.Is(t, c.err || c.length == UntilClose || string(rest) == "next", true, "%s, %s: %q follows", c.name, how, rest)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

// TestBodyWriteError: the error of who takes a body is told apart from that of who sends it.
func TestBodyWriteError(t *testing.T) {
	t.Parallel()
	err := NewReader(strings.NewReader("body")).Body(4).Forward(broken{}, false)
	_, ok := errors.AsType[*WriteError](err)
	rig.Is(t, ok, true, "%v is a WriteError", err)
}

func TestTarget(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/a?b":             ` "" /a?b`,
		"http://h":         `http "h" /`,
		"http://h?a":       `http "h" /?a`,
		"HTTP://u:p@H:8/a": `http "H:8" /a`,
		"ftp://[::1]:1/":   `ftp "[::1]:1" /`,
		"http://a@b@c/d@e": `http "c" /d@e`,
		"//a/b":            ` "" //a/b`,
	} {
		target, err := ParseTarget([]byte(in))
		rig.Is(t, fmt.Sprintf("%s %q %s", target.Scheme, target.Authority, target.Path), want, "%s", in)
		rig.Check(t, err)
	}
	for _, in := range []string{"*", "h:80", "http:/h", "http://", "http:///a", "1http://h/", "http://u@/"} {
		rig.Is(t, rig.Err(ParseTarget([]byte(in))) != nil, true, "%s is refused", in)
	}
}

func TestSplitAuthority(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"h": "h 0", "h:1": "h 1", "h:65535": "h 65535", "[::1]": "[::1] 0", "[::1]:443": "[::1] 443", "h:80": "h 80",
	} {
		host, port, err := SplitAuthority(in)
		rig.Is(t, fmt.Sprintf("%s %d", host, port), want, "%q", in)
		rig.Check(t, err)
	}
	for _, in := range []string{
		"", ":1", "h:", "h:0", "h:65536", "h:1:2", "::1", "h:x", "[::1", "[::1]x", "[::1]:", "u@h", "h/", "h :1", "h:+1", "h:080",
	} {
		_, _, err := SplitAuthority(in)
		rig.Is(t, err != nil, true, "%q is refused", in)
	}
}

// FuzzRequests: whatever comes, reading ends, within bounds, and with the same result however
// the bytes arrive; what is read is what was sent.
func FuzzRequests(f *testing.F) {
	for _, c := range malformed {
		if len(c.in) < 1<<10 {
			f.Add([]byte(c.in))
		}
	}
	f.Add([]byte("POST http://h/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nGET / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabGET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, err := readAll(NewReader(bytes.NewReader(in)))
		again, errAgain := readAll(NewReader(iotest.OneByteReader(bytes.NewReader(in))))
		rig.Is(t, fmt.Sprint(again, errAgain), fmt.Sprint(whole, err), "byte by byte")
		// What was understood is written down again, and understood in the same way.
		third, err := readAll(NewReader(strings.NewReader(whole)))
		rig.Is(t, third, whole, "read again")
		rig.Is(t, err, io.EOF, "%q, read again", whole)
	})
}

// readAll reads requests with their bodies until an error, and writes them down again.
func readAll(r *Reader) (string, error) {
	var all strings.Builder
	for {
		q, err := r.Request()
		if err != nil {
			return all.String(), err
		}
		if q.Target[0] == '/' || bytes.Contains(q.Target, []byte("://")) {
			if target, err := ParseTarget(q.Target); err == nil {
				_, _, _ = SplitAuthority(target.Authority)
			}
		}
		var one strings.Builder
		fmt.Fprintf(&one, "%s %s HTTP/1.%d\r\n", q.Method, q.Target, q.Minor)
		for _, f := range q.Fields {
			fmt.Fprintf(&one, "%s: %s\r\n", f.Name, f.Value)
		}
		one.WriteString("\r\n")
		body, err := io.ReadAll(r.Body(q.Length))
		if err != nil {
			return all.String(), err
		}
		if q.Length != Chunked {
			one.Write(body)
		} else if err := NewReader(bytes.NewReader(body)).Body(int64(len(body))).Forward(&one, true); err != nil {
			return all.String(), err
		}
		all.WriteString(one.String())
	}
}

// FuzzResponses: the same for answers.
func FuzzResponses(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nHTTP/1.0 200 OK\r\n\r\nab"))
	f.Add([]byte("HTTP/1.1 100 \r\n\r\nHTTP/1.1 304 OK\r\nContent-Length: 3\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for range len(in) {
			a, err := r.Response("GET")
			if err != nil {
				return
			}
			rig.Is(t, a.Status >= 100 && a.Status <= 999 && a.Length >= UntilClose, true, "status %d, length %d", a.Status, a.Length)
			if r.Body(a.Length).Move(io.Discard) != nil {
				return
			}
		}
	})
}
