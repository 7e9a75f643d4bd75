package protocol

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
)

// PathURI is a file URI as it came from the wire (rpc.md 5.1): either a native
// path, or a URI that is well formed but names nothing on a Linux host (another
// authority, a drive letter, an escaped unrepresentable path). The two differ
// because a malformed URI is an error of decoding, and a foreign URI an error of
// the method that uses it. The zero value is no path.
type PathURI struct {
	path string // clean and absolute; empty: foreign
	// text is a foreign URI as it was sent, or a native one that is not spelled as the path would be.
	// Then it is normalised: dot segments are gone, and what must be encoded is.
	text string
}

// ForeignPathError says that a well-formed file URI names nothing on this host. A
// request with such a path is refused with -32600, or with -32602 if it is the cwd
// of process/start. All errors of ParsePathURI are errors of decoding and always
// -32602.
type ForeignPathError struct {
	URI string // as sent
}

func (e *ForeignPathError) Error() string {
	return fmt.Sprintf("path uri %s is invalid on linux", quoteURI(e.URI))
}

// NewPathURI returns the URI of a native path, which must be absolute and clean.
func NewPathURI(path string) PathURI { return PathURI{path: path} }

// IsZero reports whether there is no URI, for example because an optional member
// was absent or null.
func (p PathURI) IsZero() bool { return p.path == "" && p.text == "" }

// Native returns the path: absolute, lexically clean, without a trailing slash
// except for "/", possibly not UTF-8. The error is a *ForeignPathError.
func (p PathURI) Native() (string, error) {
	if p.path == "" {
		return "", &ForeignPathError{URI: p.text}
	}
	return p.path, nil
}

// String returns a foreign URI as it was sent. A native one keeps the spelling in which it was sent,
// but for what [ParsePathURI] resolves.
func (p PathURI) String() string {
	if p.text != "" {
		return p.text
	}
	var buf [256]byte // keeps the common path to the one allocation of the result
	return string(appendPathURI(buf[:0], p.path))
}

// MarshalText returns the same text as String.
func (p PathURI) MarshalText() ([]byte, error) {
	if p.text != "" {
		return []byte(p.text), nil
	}
	return appendPathURI(nil, p.path), nil
}

// Below returns the URI of a native path. The folders that it shares with p are spelled as in p, so
// that a client that knows p finds what it asked for.
func (p PathURI) Below(path string) PathURI {
	if p.text == "" || p.path == "" {
		return PathURI{path: path}
	}
	return PathURI{path: path, text: string(p.appendBelow(nil, path))}
}

// appendBelow appends the text of [PathURI.Below].
func (p PathURI) appendBelow(dst []byte, native string) []byte {
	if p.text == "" || p.path == "" {
		return appendPathURI(dst, native)
	}
	if native == p.path {
		return append(dst, p.text...)
	}
	// Go up until the folder contains the path, as long as both spellings have the same names.
	folder, text := p.path, strings.TrimSuffix(p.text, "/")
	for {
		if rest, ok := strings.CutPrefix(native, strings.TrimSuffix(folder, "/")); ok && (rest == "" || rest[0] == '/') {
			return appendEncoded(append(dst, text...), rest, needsEncoding)
		}
		slash := strings.LastIndexByte(text, '/')
		if decodePercent(text[slash+1:]) != path.Base(folder) {
			return appendPathURI(dst, native)
		}
		folder, text = path.Dir(folder), text[:slash]
	}
}

// UnmarshalText reads the same texts as ParsePathURI.
func (p *PathURI) UnmarshalText(text []byte) error {
	uri, err := ParsePathURI(string(text))
	if err != nil {
		return err
	}
	*p = uri
	return nil
}

// appendPathURI appends the canonical file URI of an absolute, clean native path,
// with any bytes but NUL. The result is printable ASCII without quotes and
// backslashes, so it may stand in a JSON string as it is.
func appendPathURI(dst []byte, path string) []byte {
	dst = append(dst, "file://"...)
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	if len(path) > 2 && path[2] == ':' && isDriveSegment(firstSegment(path)) {
		// A plain "C:" at the top would be read as a drive letter and refused. An
		// encoded letter is read as a name, here and by the reference. (The
		// reference itself writes such a path in an escape form that no reader can
		// use.)
		dst = append(dst, '/', '%', upperHex[path[1]>>4], upperHex[path[1]&15])
		path = path[2:]
	}
	return appendEncoded(dst, path, needsEncoding)
}

// appendEncoded appends path with the bytes encoded that encode selects.
func appendEncoded(dst []byte, path string, encode func(byte) bool) []byte {
	plain := 0
	for i := 0; i < len(path); i++ {
		c := path[i]
		if !encode(c) {
			continue
		}
		dst = append(dst, path[plain:i]...)
		dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		plain = i + 1
	}
	return append(dst, path[plain:]...)
}

const upperHex = "0123456789ABCDEF"

// The bytes below 0x80 that results carry percent-encoded, one bit each: controls,
// blank, "#%<>? and \`{} and DEL. All bytes from 0x80 are encoded too (measured on
// the reference for all 255 bytes a file name may hold).
const (
	encodedBelow40 uint64 = 1<<33 - 1 | 1<<'"' | 1<<'#' | 1<<'%' | 1<<'<' | 1<<'>' | 1<<'?'
	encodedBelow80 uint64 = 1<<('\\'-64) | 1<<('`'-64) | 1<<('{'-64) | 1<<('}'-64) | 1<<(0x7f-64)
)

func needsEncoding(c byte) bool {
	switch {
	case c < 64:
		return encodedBelow40>>c&1 != 0
	case c < 128:
		return encodedBelow80>>(c-64)&1 != 0
	}
	return true
}

var (
	errRelativeURI = errors.New("relative text, want a file uri such as file:///tmp/x")
	errQuery       = errors.New("query parameters are not allowed")
	errFragment    = errors.New("fragments are not allowed")
	errHost        = errors.New("bad host")
	errNUL         = errors.New("nul byte")
)

// ParsePathURI reads a file URI by the rules of the WHATWG URL standard, section
// 4.4, restricted to the file scheme. Blanks and controls around the URI are
// ignored, and tabs and line ends anywhere in it; `\` separates like `/`; dot
// segments (also spelled %2e) are resolved before anything is decoded; a bad
// percent escape stands for itself. A %2F decodes to a real separator, and dot
// segments that appear by it are resolved lexically too. An error is an error of
// decoding (-32602). For a URI that parses but names nothing here,
// PathURI.Native returns the error.
func ParsePathURI(uri string) (PathURI, error) {
	if p, ok := parsePlain(uri); ok {
		return PathURI{path: p}, nil
	}
	p, err := parseURI(uri)
	if err != nil {
		return PathURI{}, fmt.Errorf("path uri %s: %w", quoteURI(uri), err)
	}
	return p, nil
}

// parsePlain recognises a canonical URI in which nothing needs decoding. Its path
// is then a part of the URI's text.
func parsePlain(uri string) (string, bool) {
	const prefix = "file:///"
	if len(uri) <= len(prefix) || uri[:len(prefix)] != prefix {
		return "", false
	}
	p := uri[len(prefix)-1:]
	start := 1 // of the current segment
	for i := 1; i < len(p); i++ {
		c := p[i]
		if c == '/' {
			if isEmptyOrDots(p[start:i]) {
				return "", false
			}
			start = i + 1
			continue
		}
		if c <= ' ' || c == '%' || c == '\\' || c == '?' || c == '#' {
			return "", false
		}
	}
	if isEmptyOrDots(p[start:]) || isDriveSegment(firstSegment(p)) {
		return "", false
	}
	return p, true
}

func isEmptyOrDots(s string) bool {
	return s == "" || s[0] == '.' && (len(s) == 1 || len(s) == 2 && s[1] == '.')
}

func parseURI(sent string) (PathURI, error) {
	uri := strings.TrimFunc(sent, func(r rune) bool { return r <= ' ' })
	if strings.ContainsAny(uri, "\t\n\r") {
		uri = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(uri)
	}
	scheme, rest, ok := cutScheme(uri)
	if !ok {
		return PathURI{}, errRelativeURI
	}
	if !strings.EqualFold(scheme, "file") {
		return PathURI{}, fmt.Errorf("scheme %q is not file", scheme)
	}
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		if rest[i] == '?' {
			return PathURI{}, errQuery
		}
		return PathURI{}, errFragment
	}
	rest = strings.ReplaceAll(rest, `\`, "/")
	host, rest, err := cutHost(rest)
	if err != nil {
		return PathURI{}, err
	}
	segments := resolveDots(rest)
	if isEscapeForm(segments) {
		return PathURI{text: sent}, nil
	}
	native := decodePercent("/" + strings.Join(segments, "/"))
	if strings.IndexByte(native, 0) >= 0 {
		return PathURI{}, errNUL
	}
	if host != "" || len(segments) > 0 && isDriveSegment(segments[0]) {
		return PathURI{text: sent}, nil
	}
	p := PathURI{path: path.Clean(native)}
	// An escape stays as it was sent, and an empty segment is kept.
	spelled := appendEncoded([]byte("file://"), "/"+strings.Join(segments, "/"), func(c byte) bool { return c != '%' && needsEncoding(c) })
	if p.text = string(spelled); p.text == string(appendPathURI(nil, p.path)) {
		p.text = ""
	}
	return p, nil
}

// cutScheme splits uri at the colon that ends a scheme: a letter, then letters,
// digits and "+-.".
func cutScheme(uri string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(uri, ":")
	if !ok || scheme == "" || !isLetter(scheme[0]) {
		return "", "", false
	}
	for i := range len(scheme) {
		c := scheme[i]
		if !isLetter(c) && (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' {
			return "", "", false
		}
	}
	return scheme, rest, true
}

// cutHost divides the text after "file:" into the host and the path. The host is
// empty when there is none and when it is localhost. A drive letter in place of the
// host belongs to the path.
func cutHost(rest string) (host, tail string, err error) {
	after, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return "", normalDrive(strings.TrimPrefix(rest, "/")), nil
	}
	host, tail = after, ""
	if i := strings.IndexByte(after, '/'); i >= 0 {
		host, tail = after[:i], after[i:]
	}
	if len(host) == 2 && isLetter(host[0]) && (host[1] == ':' || host[1] == '|') {
		return "", normalDrive(after), nil
	}
	if host, err = decodeHost(host); err != nil {
		return "", "", err
	}
	return host, tail, nil
}

// normalDrive writes a leading "C|" segment as "C:". The reference does so only
// where fewer than three slashes stand before.
func normalDrive(p string) string {
	if s := firstSegment("/" + p); len(s) == 2 && isLetter(s[0]) && s[1] == '|' {
		return s[:1] + ":" + p[2:]
	}
	return p
}

// decodeHost checks an authority as the host parser of the standard does, but
// without IDNA: a name that needs IDNA is foreign, whatever IDNA would make of it.
// Credentials and ports are not allowed in a file URI.
func decodeHost(host string) (string, error) {
	if strings.HasPrefix(host, "[") {
		literal, closed := strings.CutSuffix(host[1:], "]")
		addr, err := netip.ParseAddr(literal)
		if err != nil || !closed || !addr.Is6() || addr.Zone() != "" {
			return "", errHost
		}
		return host, nil
	}
	host = decodePercent(host)
	for _, c := range []byte(host) {
		if c <= ' ' || c == 0x7f || strings.IndexByte("#/:<>?@[\\]^|%", c) >= 0 {
			return "", errHost
		}
	}
	if strings.EqualFold(host, "localhost") {
		return "", nil
	}
	return host, nil
}

// resolveDots splits p into its segments, still encoded, and applies "." and "..",
// which never leave the root or a drive. Empty segments count for "..", save those
// in front of the first name. A dot segment at the end leaves an empty one.
func resolveDots(p string) []string {
	segments := make([]string, 0, strings.Count(p, "/")+1)
	dots := 0
	for s := range strings.SplitSeq(p, "/") {
		switch dots = dotCount(s); {
		case dots == 1:
		case dots == 2:
			if n := len(segments); n > 1 || n == 1 && !(isDriveSegment(segments[0]) && segments[0][1] == ':') {
				segments = segments[:n-1]
			}
		case s == "" && len(segments) == 0:
		default:
			segments = append(segments, s)
		}
	}
	if dots > 0 && len(segments) > 0 {
		segments = append(segments, "")
	}
	return segments
}

// dotCount returns 1 for ".", 2 for "..", each dot possibly spelled %2e, and 0 for
// every other segment.
func dotCount(s string) int {
	n := 0
	for s != "" && n < 3 {
		switch {
		case s[0] == '.':
			s = s[1:]
		case len(s) >= 3 && s[0] == '%' && s[1] == '2' && s[2]|0x20 == 'e':
			s = s[3:]
		default:
			return 0
		}
		n++
	}
	if n > 2 {
		return 0
	}
	return n
}

// isEscapeForm reports whether segments are /%00/bad/path/<base64url>, the form in
// which a peer wraps one of its paths that no URI can carry. No path of this host
// needs the form, so such a URI is foreign.
func isEscapeForm(segments []string) bool {
	if len(segments) != 4 || segments[0] != "%00" || segments[1] != "bad" || segments[2] != "path" || segments[3] == "" {
		return false
	}
	_, err := strictjson.RawURLBase64.Decode(segments[3])
	return err == nil
}

func decodePercent(s string) string {
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for ; i >= 0; i = strings.IndexByte(s, '%') {
		out = append(out, s[:i]...)
		s = s[i:]
		if len(s) >= 3 && isHex(s[1]) && isHex(s[2]) {
			out = append(out, unhex(s[1])<<4|unhex(s[2]))
			s = s[3:]
			continue
		}
		out = append(out, '%')
		s = s[1:]
	}
	return string(append(out, s...))
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// firstSegment returns the text between the leading slash of p and the next slash.
func firstSegment(p string) string {
	p = p[1:]
	if before, _, ok := strings.Cut(p, "/"); ok {
		return before
	}
	return p
}

// isDriveSegment reports whether an encoded first segment names a drive: a letter
// and a colon, which may be encoded.
func isDriveSegment(s string) bool {
	return len(s) >= 2 && isLetter(s[0]) && (s[1:] == ":" || len(s) == 4 && s[1] == '%' && s[2] == '3' && s[3]|0x20 == 'a')
}

// maxQuotedURI is how many bytes of a URI an error quotes, because a URI may be
// as long as a message.
const maxQuotedURI = 512

func quoteURI(uri string) string {
	if len(uri) <= maxQuotedURI {
		return fmt.Sprintf("%q", uri)
	}
	cut := uri[:maxQuotedURI]
	for !utf8.ValidString(cut) && len(cut) > maxQuotedURI-utf8.UTFMax {
		cut = cut[:len(cut)-1]
	}
	return fmt.Sprintf("%q...", cut)
}

// pathMember reads a required path URI.
func pathMember(o *strictjson.Object, name string) (p PathURI) {
	o.Parse(name, func(s string) (err error) {
		p, err = ParsePathURI(s)
		return err
	})
	return p
}

// optPathMember reads a path URI, nil when absent or null.
func optPathMember(o *strictjson.Object, name string) *PathURI {
	if !o.Has(name) {
		return nil
	}
	return new(pathMember(o, name))
}

// pathsMember reads a required array of path URIs.
func pathsMember(o *strictjson.Object, name string) []PathURI {
	out := []PathURI{}
	o.ParseEach(name, func(s string) error {
		p, err := ParsePathURI(s)
		out = append(out, p)
		return err
	})
	return out
}

// pathsMemberDefault reads an array of path URIs that may be absent.
func pathsMemberDefault(o *strictjson.Object, name string) []PathURI {
	if !o.Present(name) {
		return nil
	}
	return pathsMember(o, name)
}

// nativeMember reads a required path URI that names something on Linux.
func nativeMember(o *strictjson.Object, name string) string {
	uri := pathMember(o, name)
	if o.Err() != nil {
		return ""
	}
	path, err := uri.Native()
	if err != nil {
		o.Fail(name, "%v", err)
	}
	return path
}
