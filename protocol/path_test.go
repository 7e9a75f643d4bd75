package protocol

import (
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestParsePathURI(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/paths.txt", "native", 2) {
		rig.Is(t, rig.Value(rig.Value(ParsePathURI(row[0])).Native()), row[1], "%q", row[0])
	}
}

func TestParsePathURIForeign(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/paths.txt", "foreign", 1) {
		text := row[0]
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
	for _, row := range rig.Rows(t, "testdata/paths.txt", "refused", 2) {
		uri, err := ParsePathURI(row[0])
		rig.Is(t, uri.IsZero(), true, "%q gives %v: nothing", row[0], uri)
		rig.Says(t, err, row[1], "%q", row[0])
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
	for _, row := range rig.Rows(t, "testdata/paths.txt", "spelling", 3) {
		text, path, want := row[0], row[1], row[2]
		root := rig.Value(ParsePathURI(text))
		rig.Is(t, root.Below(path).String(), want, "%q: %q", text, path)
		walk := (&WalkResult{Root: root, Entries: []WalkEntry{{Path: path}}}).AppendJSON(nil)
		rig.Is(t, strings.Contains(string(walk), `"`+want+`"`), true, "%s", walk)
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
