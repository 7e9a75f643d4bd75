package head

import (
	"bytes"
	"strings"
)

// A Field is a field of a head. Its value has no surrounding white space.
type Field struct {
	Name, Value []byte
}

// Is reports whether the field has this name. The name is in lower case.
func (f Field) Is(name string) bool {
	if len(f.Name) != len(name) {
		return false
	}
	for i, c := range f.Name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}

// Special values for the length of a body.
const (
	Chunked    = -1
	UntilClose = -2 // only of an answer: the body ends with the connection
)

// A Request is the head of a request.
type Request struct {
	Method string
	Target []byte  // as the client sent it
	Minor  int     // minor version of HTTP/1: 0 or 1
	Fields []Field // in the order of the message
	Length int64   // length of the body in bytes, or Chunked
}

// A Response is the head of an answer.
type Response struct {
	Minor  int // minor version of HTTP/1: 0 or 1
	Status int
	Reason []byte // the text after the status
	Fields []Field
	Length int64 // length of the body in bytes, Chunked or UntilClose
}

// Request reads the head of a request. It returns io.EOF if the connection ends before the first
// byte. The slices of the request are valid until the next read.
func (r *Reader) Request() (*Request, error) {
	lines, err := r.lines()
	if err == nil && len(lines) == 0 {
		lines, err = r.lines() // one empty line may precede a request, because old clients send one after a body
	}
	if err != nil {
		return nil, err
	}
	first, rest, _ := bytes.Cut(lines, crlf)
	method, after, _ := bytes.Cut(first, space)
	target, version, ok := bytes.Cut(after, space)
	if !ok || len(target) == 0 || !isToken(method) {
		return nil, MalformedError("the first line is not METHOD TARGET VERSION")
	}
	q := &Request{Method: name(method), Target: target}
	if q.Minor, err = minor(version); err != nil {
		return nil, err
	}
	for _, c := range target {
		if c <= ' ' || c == 0x7f || c == '#' {
			return nil, MalformedError("the target has a character that no target has")
		}
	}
	if q.Fields, err = r.parse(rest); err != nil {
		return nil, err
	}
	q.Length, err = length(q.Fields, q.Minor)
	if q.Length == UntilClose {
		q.Length = 0
	}
	return q, err
}

// Response reads the head of an answer to a request with this method. The slices of the answer are
// valid until the next read.
func (r *Reader) Response(method string) (*Response, error) {
	lines, err := r.lines()
	if err != nil {
		return nil, err
	}
	first, rest, _ := bytes.Cut(lines, crlf)
	version, after, _ := bytes.Cut(first, space)
	status, reason, _ := bytes.Cut(after, space)
	a := &Response{Reason: reason}
	if a.Minor, err = minor(version); err != nil {
		return nil, err
	}
	if len(status) != 3 || status[0] < '1' || status[0] > '9' || !isDigit(status[1]) || !isDigit(status[2]) {
		return nil, MalformedError("the status is not a number of three digits")
	}
	a.Status = int(status[0]-'0')*100 + int(status[1]-'0')*10 + int(status[2]-'0')
	if !isText(reason) {
		return nil, MalformedError("the reason of a status has a control character")
	}
	if a.Fields, err = r.parse(rest); err != nil {
		return nil, err
	}
	if a.Length, err = length(a.Fields, a.Minor); err != nil {
		return nil, err
	}
	if method == "HEAD" || a.Status < 200 || a.Status == 204 || a.Status == 304 {
		a.Length = 0
	}
	return a, nil
}

var (
	crlf  = []byte("\r\n")
	space = []byte(" ")
)

// minor returns the x of HTTP/1.x.
func minor(version []byte) (int, error) {
	switch string(version) {
	case "HTTP/1.1":
		return 1, nil
	case "HTTP/1.0":
		return 0, nil
	}
	return 0, ErrVersion
}

// parse appends the fields of the lines. All lines end with CRLF.
func parse(lines []byte, fields []Field) ([]Field, error) {
	named := 0
	for len(lines) > 0 {
		var line []byte
		line, lines, _ = bytes.Cut(lines, crlf)
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !isToken(name) {
			return nil, MalformedError("a field has no name, or white space in it")
		}
		value = bytes.Trim(value, " \t")
		if !isText(value) {
			return nil, MalformedError("a field has a control character")
		}
		if len(fields) == maxFields {
			return nil, ErrTooLarge
		}
		f := Field{name, value}
		if f.Is("connection") || f.Is("proxy-connection") {
			if named += 1 + bytes.Count(value, []byte(",")); named > maxNamed {
				return nil, ErrTooLarge
			}
		}
		fields = append(fields, f)
	}
	return fields, nil
}

// parse returns the fields of a head. The next head uses their memory again.
func (r *Reader) parse(lines []byte) ([]Field, error) {
	fields, err := parse(lines, r.fields[:0])
	if cap(fields) <= usualFields {
		r.fields = fields
	}
	return fields, err
}

// length returns the length of the body that the fields announce. It returns UntilClose if the
// fields announce none.
func length(fields []Field, minor int) (int64, error) {
	n, found := int64(UntilClose), false
	for _, f := range fields {
		chunked := f.Is("transfer-encoding")
		if !chunked && !f.Is("content-length") {
			continue
		}
		if found {
			return 0, MalformedError("the body has two lengths")
		}
		found = true
		if !chunked {
			var ok bool
			if n, ok = number(f.Value); !ok {
				return 0, MalformedError("Content-Length is no number")
			}
			continue
		}
		if minor == 0 || !strings.EqualFold(string(f.Value), "chunked") {
			return 0, MalformedError("Transfer-Encoding is not chunked alone")
		}
		n = Chunked
	}
	return n, nil
}

// number returns the value of decimal digits. It accepts at most 18 digits and no leading 0,
// because some programs read a leading 0 as another base.
func number(text []byte) (int64, bool) {
	if len(text) == 0 || len(text) > 18 || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	n := int64(0)
	for _, c := range text {
		if !isDigit(c) {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// name returns the method as a string, without an allocation for the usual methods.
func name(method []byte) string {
	switch string(method) {
	case "GET":
		return "GET"
	case "HEAD":
		return "HEAD"
	case "POST":
		return "POST"
	case "CONNECT":
		return "CONNECT"
	}
	return string(method)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isToken reports whether text is a token of RFC 9110, 5.6.2.
func isToken(text []byte) bool {
	for _, c := range text {
		if !token[c] {
			return false
		}
	}
	return len(text) > 0
}

var token = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// isText reports whether text may be the value of a field: it has no control characters except the
// tab.
func isText(text []byte) bool {
	for _, c := range text {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
