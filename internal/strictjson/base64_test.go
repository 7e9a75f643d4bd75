package strictjson

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// strictly decodes base64 as the wire means it: with encoding/base64, but without
// its tolerance of line ends.
func strictly(encoded []byte) ([]byte, bool) {
	if bytes.ContainsAny(encoded, "\r\n") {
		return nil, false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(string(encoded))
	return b, err == nil
}

func checkBase64(t interface{ Errorf(string, ...any) }, encoded []byte) {
	want, ok := strictly(encoded)
	fresh, freshErr := decodeBase64(nil, encoded)
	inPlace := bytes.Clone(encoded)
	got, err := decodeBase64(inPlace, inPlace)
	if !bytes.Equal(got, fresh) || (err == nil) != (freshErr == nil) {
		t.Errorf("decodeBase64(%q) in place = %q, %v, else %q, %v", encoded, got, err, fresh, freshErr)
	}
	switch {
	case ok != (err == nil):
		t.Errorf("decodeBase64(%q): %v, encoding/base64 says %v", encoded, err, ok)
	case ok && !bytes.Equal(got, want):
		t.Errorf("decodeBase64(%q) = %q, want %q", encoded, got, want)
	case !ok && got != nil:
		t.Errorf("decodeBase64(%q) = %q beside an error", encoded, got)
	}
}

func TestBase64(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "A", "AA", "AAA", "AAAA", "AA==", "AAA=", "A===", "====", "=", "AA=A", "A=AA", "AA==AAAA", "AAA=AAAA", "AB==", "AAB=",
		"AA==\n", "\nAA==", "AA\n==", "AA=\n", "\r\n\r\n", "AAAA\n\n\n\n", "AAAA\n\n\n\nAAAA", " AA==", "AA-_", "AA+/", "AAA\x00", "AAA\xff", "ÄAA",
	} {
		checkBase64(t, []byte(in))
		for _, n := range []int{3, 30, 33, 48, 51, 765, 768, 771, 3000} {
			checkBase64(t, []byte(base64.StdEncoding.EncodeToString(make([]byte, n))+in))
		}
	}
	// Every byte, in every place of a text long enough for all of the loops.
	text := bytes.Repeat([]byte("Qk0z"), 40)
	for i := range text {
		for c := range 256 {
			in := bytes.Clone(text)
			in[i] = byte(c)
			checkBase64(t, in)
		}
	}
}

func TestBase64ErrorNamesThePlace(t *testing.T) {
	t.Parallel()
	head := strings.Repeat("Qk0z", 100)
	for _, tt := range []struct{ in, want string }{
		{"!AAA", `symbol '!' at offset 0`},
		{head + "AA-_", `symbol '-' at offset 402`},
		{head + "\n", `symbol '\n' at offset 400`},
		{"A=AA", `symbol '=' at offset 1`},
		{"AAA", "padding or last symbol of 3 bytes"},
		{"AB==", "padding or last symbol of 4 bytes"},
	} {
		in := []byte(tt.in)
		rig.Is(t, fmt.Sprint(rig.Err(decodeBase64(in, in))), tt.want, "%.20q", tt.in)
	}
}

// TestBase64InJSON pins that escapes are undone before base64 is read.
func TestBase64InJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, want string
		ok       bool
	}{
		{`"Zm9v"`, "foo", true},
		{`"\u005am9v"`, "foo", true},
		{`"AA\u003d\u003d"`, "\x00", true},
		{`"\/\/8="`, "\xff\xff", true},
		{`"Zm9v\n"`, "", false},
		{`"\u0000AAA"`, "", false},
		{`"Zm9v\\"`, "", false},
	} {
		params, err := scan([]byte(inParams(`{"chunk":` + tt.in + `}`)))
		rig.Must(t, err)
		o, _ := ParseObject(params)
		rig.Is(t, string(o.Base64("chunk")), tt.want, "%s", tt.in)
		rig.Is(t, o.Err() == nil, tt.ok, "%s: %v", tt.in, o.Err())
	}
}

func TestBase64RoundTrip(t *testing.T) {
	t.Parallel()
	check := func(t interface{ Errorf(string, ...any) }, data []byte) {
		// The bytes behind the room for the text must stay as they are.
		room := append([]byte("x"), bytes.Repeat([]byte{0xEE}, 2*len(data)+128)...)
		got := AppendBase64(room[:1], data)
		if want := `x"` + base64.StdEncoding.EncodeToString(data) + `"`; string(got) != want {
			t.Errorf("AppendBase64(%q) = %s, want %s", data, got, want)
		}
		if rest := room[min(len(got), len(room)):]; len(bytes.Trim(rest, "\xEE")) > 0 {
			t.Errorf("AppendBase64 of %d bytes wrote beyond its end", len(data))
		}
		back, err := decodeBase64(nil, got[2:len(got)-1])
		if err != nil || !bytes.Equal(back, data) {
			t.Errorf("%q reads back as %q, %v", data, back, err)
		}
	}
	for n := range 300 {
		check(t, bytes.Repeat([]byte{0xA5}, n))
	}
	rapid.Check(t, func(t *rapid.T) { check(t, rapid.SliceOf(rapid.Byte()).Draw(t, "data")) })
}

func FuzzBase64(f *testing.F) {
	for _, seed := range []string{"", "AA==", "AAA=", "AB==", "AA==\n", "AA-_", strings.Repeat("Qk0z", 20) + "\n\n\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		checkBase64(t, in)
		checkBase64(t, []byte(base64.StdEncoding.EncodeToString(in)))
	})
}
