package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestParsePathURI(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ uri, want string }{
		{"file:///tmp/x", "/tmp/x"},
		{"file://", "/"},
		{"file:///", "/"},
		{"file:", "/"},
		{"file:/", "/"},
		{"file:..", "/"},
		{"file:/p", "/p"},
		{"file:d/a", "/d/a"},
		{"FILE:///p", "/p"},
		{"fIlE:p", "/p"},
		{"file://localhost", "/"},
		{"file://localhost/p", "/p"},
		{"file://LOCALHOST/p", "/p"},
		{"file://loc%61lhost/p", "/p"},
		{`file://localhost\p`, "/p"},
		{"file:////x", "/x"},
		{"file://///x/y", "/x/y"},
		{"file:///x//y", "/x/y"},

		{"file:///x/", "/x"},
		{"file:///x//", "/x"},
		{"file:///x/.", "/x"},
		{"file:///x/./", "/x"},
		{"file:///x/%2E", "/x"},
		{"file:///x/..", "/"},
		{"file:///../../y", "/y"},
		{"file:///x/y/../z", "/x/z"},
		{"file:///x/%2E%2e/y", "/y"},
		{"file:///x/.%2e/y", "/y"},
		{"file:///x/%2e./y", "/y"},
		{"file:///x//../y", "/x/y"},
		{"file:///x/.../y", "/x/.../y"},
		{"file:///x/..a/.b", "/x/..a/.b"},
		{"file:///x/..;/y", "/x/..;/y"},
		{"file:///tmp/.//x", "/tmp/x"},

		{"file:///a%2Fb", "/a/b"},
		{"file:///%2F", "/"},
		{"file:///%2Fa", "/a"},
		{"file:///a%2f%2fb", "/a/b"},
		{"file:///a%2F", "/a"},
		{"file:///x/..%2Fq", "/q"},
		{"file:///x%2F..%2F..%2Fq", "/q"},
		{"file:///x/y%2F..", "/x"},
		{"file:///x%2Fy/../q", "/q"},
		{"file:///a%00/../b", "/b"},

		{"file:///%61", "/a"},
		{"file:///a%zz", "/a%zz"},
		{"file:///a%", "/a%"},
		{"file:///a%4", "/a%4"},
		{"file:///a%%34", "/a%4"},
		{"file:///a%2541", "/a%41"},
		{"file:///%FFx", "/\xffx"},
		{"file:///\u00e9/%C3%A9", "/\u00e9/\u00e9"},
		{"file:///a b", "/a b"},
		{"file:///x\u00a0", "/x\u00a0"},
		{"file:///x\x01y\x7f", "/x\x01y\x7f"},
		{"file:///x%3Fq%23f", "/x?q#f"},
		{`file:///;:@&=+$,!'()*~[]^{|}` + "`<>\"", `/;:@&=+$,!'()*~[]^{|}` + "`<>\""},
		{" file:///x ", "/x"},
		{"\x00\tfile:///x\n\x1f", "/x"},
		{"fi\tle:///x\r/\ny", "/x/y"},

		{`file:\\\x\y`, "/x/y"},
		{`file:\x`, "/x"},
		{`file:///x\..\y`, "/y"},
		{"file:///x%5Cy", `/x\y`},

		{"file:///x/C:/y", "/x/C:/y"},
		{"file:///C:x", "/C:x"},
		{"file:///1:/x", "/1:/x"},
		{"file:///CC:/x", "/CC:/x"},
		{"file:///%43:/x", "/C:/x"},
		{"file:///%2FC:/x", "/C:/x"},
		{"file:///C:%2Fx", "/C:/x"},
		{"file:///C|/x", "/C|/x"},
		{"file:////C|/x", "/C|/x"},
		{"file:///c%7C/x", "/c|/x"},
		{"file:c%7c", "/c|"},
		{"file:///c%3A/../y", "/y"},
		{"file:///x//C:/..", "/x"},
	} {
		rig.Is(t, rig.Value(rig.Value(ParsePathURI(tt.uri)).Native()), tt.want, "%q", tt.uri)
	}
}

func TestParsePathURIForeign(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"file://host/tmp", "file://host", "file://host/x", "file://127.0.0.1/p", "file://[::1]/x", "file://.", "file://..",
		"file://localhost./x", "file://HOST/a b", "file://\u00e9/x", "file://ho_st/x",
		"file:///C:", "file:///C:/x", "file:///c%3A/x", "file:///c%3a", "file:C:/x", "file:/C:/x", "file://C:/x",
		"file:C|/x", "file:/C|/x", "file://C|/x", "file:c|", "file://c|", `file:c:\x`, "file:////C:/x", "file:////c%3A/x",
		"file:///./C:/x", "file:///%2e%2e/C:", "file:///x/../C:/y", "file:///x/../..//C:/", "file:///C:/../y",
		"file:///C:/../../y", "file:////C:/../y", "file:C:/../y", "file:///C:/%00/../y", "file://localhost/C:/x", "file://host/C:/x",
		"file:///%00/bad/path/L3RtcC9h", "file:////%00/bad/path/L3RtcC9h", "file:///./%00/bad/path/L3RtcC9h",
	} {
		uri := rig.Value(ParsePathURI(text))
		got, err := uri.Native()
		foreign, ok := errors.AsType[*ForeignPathError](err)
		rig.Is(t, ok && foreign.URI == text && got == "", true, "%q: %q, %v: a ForeignPathError", text, got, err)
		rig.Is(t, uri.String(), text, "the text as sent")
		rig.Is(t, uri.IsZero(), false, "%q is zero", text)
	}
}

func TestParsePathURIErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ uri, want string }{
		{"", "relative text"},
		{"a", "relative text"},
		{"file", "relative text"},
		{"/tmp/x", "relative text"},
		{"//localhost/x", "relative text"},
		{`\\x`, "relative text"},
		{"1file:///x", "relative text"},
		{"fi le:///x", "relative text"},
		{":///x", "relative text"},
		{"\u00a0file:///x", "relative text"},
		{"http://x/y", `scheme "http"`},
		{"foo:bar", `scheme "foo"`},
		{"file+x:///a", `scheme "file+x"`},
		{"blob:file:///x", `scheme "blob"`},
		{"C:/x", `scheme "C"`},
		{"file:///x?", "query"},
		{"file:///x?q#f", "query"},
		{"file:?q", "query"},
		{"file://c:?", "query"},
		{"file:///x#", "fragment"},
		{"file:///x#f?q", "fragment"},
		{"file:///a%00b", "nul byte"},
		{"file:///%00", "nul byte"},
		{"file://host/%00", "nul byte"},
		{"file:///C:/a%00b", "nul byte"},
		{"file:///a\x00b", "nul byte"},
		{"file:///%00/bad/path/", "nul byte"},
		{"file:///%00/bad/path", "nul byte"},
		{"file:///%00/bad/path/!!", "nul byte"},
		{"file:///%00/bad/path/L3RtcC9h=", "nul byte"},
		{"file:///%00/bad/path/L3", "nul byte"},
		{"file:///%00/bad/path/L3R%74", "nul byte"},
		{"file:///%00/bad/path/L3RtcC9h/x", "nul byte"},
		{"file:///%00/bad/path/L3RtcC9h/", "nul byte"},
		{"file:///%00/bad//path/L3RtcC9h", "nul byte"},
		{"file:///x/%00/bad/path/L3RtcC9h", "nul byte"},
		{"file://user@localhost/p", "bad host"},
		{"file://localhost:80/p", "bad host"},
		{"file://localhost:/p", "bad host"},
		{"file://:80/p", "bad host"},
		{"file:// /x", "bad host"},
		{"file://a b/x", "bad host"},
		{"file://[/x", "bad host"},
		{"file://[1.2.3.4]/x", "bad host"},
		{"file://%zz/x", "bad host"},
		{"file://host%2Fx/", "bad host"},
		{"file://ho%00st/", "bad host"},
		{"file://%63:/x", "bad host"},
	} {
		uri, err := ParsePathURI(tt.uri)
		rig.Is(t, uri.IsZero() && strings.Contains(fmt.Sprint(err), tt.want), true, "%q: %v, %v has %q", tt.uri, uri, err, tt.want)
	}
}

func TestParsePathURIErrorIsBounded(t *testing.T) {
	t.Parallel()
	_, err := ParsePathURI("http:" + strings.Repeat("\u00e9", 1<<20))
	rig.Is(t, err != nil && len(err.Error()) <= 4*maxQuotedURI, true, "%v is a short error", err)
}

func TestNewPathURI(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, want string }{
		{"/", "file:///"},
		{"/tmp/x", "file:///tmp/x"},
		{"/a b#?%", "file:///a%20b%23%3F%25"},
		{"/%41", "file:///%2541"},
		{"/\u00e9\xff", "file:///%C3%A9%FF"},
		{"/C:/d", "file:///%43:/d"},
		{"/z:", "file:///%7A:"},
		{"/C:d/C:", "file:///C:d/C:"},
		{"/c|/d", "file:///c|/d"},
		{"/" + strings.Repeat("\xff", 300), "file:///" + strings.Repeat("%FF", 300)},
	} {
		rig.Is(t, NewPathURI(tt.path).String(), tt.want, "NewPathURI(%q)", tt.path)
		rig.Is(t, string(appendPathURI([]byte("x"), tt.path)), "x"+tt.want, "AppendPathURI(x, %q)", tt.path)
	}
}

// TestPathURIBytes pins which of the 255 bytes of a file name stay plain, as
// measured on the reference.
func TestPathURIBytes(t *testing.T) {
	t.Parallel()
	const plain = "!$&'()*+,-./0123456789:;=@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_abcdefghijklmnopqrstuvwxyz|~"
	for i := 1; i < 256; i++ {
		c := byte(i)
		want := "%" + upperHex[c>>4:c>>4+1] + upperHex[c&15:c&15+1]
		if strings.IndexByte(plain, c) >= 0 {
			want = string(rune(c))
		}
		rig.Is(t, NewPathURI("/a"+string([]byte{c})+"b").String(), "file:///a"+want+"b", "byte %#x", c)
	}
}

// TestSpelling: a URI keeps the spelling of what was sent, normalised as the reference does, and so
// do the URIs of what is below it and above it.
func TestSpelling(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ uri, path, want string }{
		{"file:///a%2Bb", "/a+b/c d", "file:///a%2Bb/c%20d"},
		{"file:///%61+b/", "/a+b", "file:///%61+b/"},
		{"file:///%61+b/", "/a+b/c", "file:///%61+b/c"},
		{"file:///%61//b//", "/a/b/c", "file:///%61//b//c"},
		{"file:///w/q/../%72", "/w/r/c", "file:///w/%72/c"},
		{"file:///w/q/..", "/w", "file:///w/"},
		{"file:///w/%72/.", "/w/r", "file:///w/%72/"},
		{"FILE://localhost/a\u00e9%c3%a9 %zz", "/a\u00e9\u00e9 %zz/c", "file:///a%C3%A9%c3%a9%20%zz/c"},
		{"file:///a%2Fb", "/a/b/c", "file:///a%2Fb/c"},
		{"file:///%2F", "/a", "file:///%2F/a"},
		{"file:///%61/%62/c", "/a/b/d/e", "file:///%61/%62/d/e"},
		{"file:///%61/b/c", "/x", "file:///x"},
		{"file:///x/a%2Fb", "/x/a/c", "file:///x/a/c"},
		{"file:///%61b", "/a", "file:///a"},
	} {
		got := rig.Value(ParsePathURI(tt.uri)).Below(tt.path)
		rig.Is(t, got.String(), tt.want, "%q: %q", tt.uri, tt.path)
		walk := (&WalkResult{Root: tt.uri, Entries: []WalkEntry{{Path: tt.path}}}).AppendJSON(nil)
		rig.Is(t, strings.Contains(string(walk), `"`+tt.want+`"`), true, "%s", walk)
	}
}

func TestPathURIJSON(t *testing.T) {
	t.Parallel()
	var v struct {
		A PathURI `json:"a"`
		B PathURI `json:"b,omitzero"`
		C PathURI `json:"c"`
	}
	const text = `{"a":"file:/tmp/./a b","b":null,"c":"file://host/x"}`
	rig.Must(t, json.Unmarshal([]byte(text), &v))
	rig.Is(t, v.A, NewPathURI("/tmp/a b"), "decoded")
	rig.Is(t, v.B.IsZero(), true, "null is nothing")
	rig.Is(t, string(rig.Value(json.Marshal(v))), `{"a":"file:///tmp/a%20b","c":"file://host/x"}`, "encoded")
	rig.Is(t, json.Unmarshal([]byte(`{"a":"/tmp"}`), &v) != nil, true, "native text is refused")
	rig.Is(t, rig.Err(PathURI{}.Native()) != nil, true, "the zero PathURI has no native path")
}

// quotedURI matches the URIs in a message.
var quotedURI = regexp.MustCompile(`"((?:file|http):[^"\\]*)"`)

func FuzzPathURI(f *testing.F) {
	uris := map[string]bool{}
	for _, message := range seeds(f) {
		for _, found := range quotedURI.FindAllSubmatch(message, -1) {
			uris[string(found[1])] = true
		}
	}
	if len(uris) < 20 {
		f.Fatalf("only %d URIs in the conformance cases", len(uris))
	}
	for uri := range uris {
		f.Add(uri)
	}
	for _, seed := range []string{
		"file:///tmp", "file:///usr", "file:///dev/null", "file:///srv/a%00b", "file:///srv/d/sp%20ace%23%3F%25.txt",
		"file:///srv/d/sub/../a.txt", "file:///srv/d%2Fa.txt", "file:///srv/d/a.txt#f", "file:///srv/d/a.txt/", "file:/srv/d/a.txt",
		"file://host/tmp", "file:///C:/x", "file:c|", `file:\\\x\..\y`, "file:///%00/bad/path/L3RtcC9h", "file:///a%%34%FF%zz",
		" fi\tle:////.%2e/%2E/x//", "http://x", "/tmp/x", "file://[::1]/", "file:///%43:/x", "file:///\u00e9/..%2f..",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A URI that parses gives a clean path, and the URI of that parses to the
		// same path.
		if uri, err := ParsePathURI(text); err == nil {
			native, err := uri.Native()
			if err == nil {
				clean := strings.HasPrefix(native, "/") && path.Clean(native) == native && !strings.Contains(native, "\x00")
				rig.Is(t, clean, true, "%q gives a clean path, %q", text, native)
				roundTrip(t, native)
				again := rig.Value(ParsePathURI(uri.String()))
				rig.Is(t, again, uri, "%q, parsed again", text)
				for _, other := range []string{native, path.Join(native, "n/%\xff"), path.Dir(native), path.Join(path.Dir(native), "n"), "/" + native} {
					other = path.Clean(other)
					again = rig.Value(ParsePathURI(uri.Below(other).String()))
					rig.Is(t, rig.Value(again.Native()), other, "below %q", text)
				}
			} else {
				rig.Is(t, rig.Value(ParsePathURI(uri.String())), uri, "foreign %q, parsed again", text)
			}
		}
		// Every clean native path survives the way there and back.
		if native := path.Clean("/" + text); !strings.Contains(native, "\x00") {
			roundTrip(t, native)
		}
	})
}

func roundTrip(t *testing.T, native string) {
	t.Helper()
	uri, err := ParsePathURI(NewPathURI(native).String())
	rig.Must(t, err)
	rig.Is(t, rig.Value(uri.Native()), native, "there and back")
}

func BenchmarkParsePathURI(b *testing.B) {
	for name, uri := range map[string]string{
		"plain":   "file:///srv/work/project/internal/server/handler_test.go",
		"encoded": "file:///srv/work/My%20Project/internal/server/handler_test.go",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rig.Must(b, rig.Err(ParsePathURI(uri)))
			}
		})
	}
}

func BenchmarkAppendPathURI(b *testing.B) {
	for name, path := range map[string]string{
		"plain":   "/srv/work/project/internal/server/handler_test.go",
		"encoded": "/srv/work/My Project/internal/server/handler_test.go",
	} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				buf = appendPathURI(buf[:0], path)
			}
		})
	}
}
