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

// messages has cases of the tests below.
const messages = "testdata/messages.txt"

// lines puts CR LF in a text of the file of messages.
func lines(text string) string { return strings.ReplaceAll(text, "|", "\r\n") }

// malformed returns requests that are refused: a name, the request, and what the error says.
func malformed(t testing.TB) [][]string {
	t.Helper()
	rows := append(rig.Rows(t, messages, "malformed", 3),
		[]string{"many names in Connection", "GET / HTTP/1.1|Connection: a" + strings.Repeat(",", maxNamed) + "||", "too large"},
		[]string{"many names in many", "GET / HTTP/1.1|" + strings.Repeat("Connection: a|Proxy-Connection: b|", maxNamed/2+1) + "|", "too large"},
		[]string{"too many fields", "GET / HTTP/1.1|" + strings.Repeat("a:|", maxFields+1) + "|", "too large"},
		[]string{"a megabyte", "GET / HTTP/1.1|A: " + strings.Repeat("a", 1<<20) + "||", "too large"},
		[]string{"a megabyte of fields", "GET / HTTP/1.1|" + strings.Repeat("A: "+strings.Repeat("a", 1<<10)+"|", 1<<10) + "|", "too large"})
	for _, row := range rows {
		row[1] = lines(row[1])
	}
	return rows
}

func TestMalformedRequest(t *testing.T) {
	t.Parallel()
	for _, row := range malformed(t) {
		rig.Says(t, rig.Err(NewReader(strings.NewReader(row[1])).Request()), row[2], "%s", row[0])
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
	type body struct {
		name, in string
		length   int64
		want     string
		err      bool
	}
	bodies := []body{
		{"none", "next", 0, "", false},
		{"length", "bodynext", 4, "body", false},
		{"short", "bod", 4, "bod", true},
		{"long", long + "next", int64(len(long)), long, false},
		{"long and short", long, int64(len(long)) + 1, long, true},
		{"until the end", long, UntilClose, long, false},
		{"a long line", "4;" + strings.Repeat("a", maxChunkLine) + "\r\nbody\r\n0\r\n\r\n", Chunked, "", true},
		{"an endless line", "4;" + strings.Repeat("a", 1<<20), Chunked, "", true},
		{"endless trailers", "0\r\n" + strings.Repeat("A: b\r\n", 1<<16), Chunked, "", true},
	}
	for _, row := range rig.Rows(t, messages, "chunks", 4) {
		bodies = append(bodies, body{row[0], lines(row[1]), Chunked, row[2], row[3] == "true"})
	}
	for _, c := range bodies {
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
	for _, row := range malformed(f) {
		if len(row[1]) < 1<<10 {
			f.Add([]byte(row[1]))
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
