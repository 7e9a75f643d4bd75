package strictjson

import (
	"encoding/base64"
	"errors"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestDecode: both methods decode the one spelling and refuse every other.
func TestDecode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		encoding Base64
		text     string
		want     string
		ok       bool
	}{
		{"standard", StdBase64, "+/8=", "\xfb\xff", true},
		{"nothing", StdBase64, "", "", true},
		{"without padding", StdBase64, "+/8", "", false},
		{"other alphabet", StdBase64, "-_8=", "", false},
		{"stray bits", StdBase64, "+/9=", "", false},
		{"line feed", StdBase64, "+/8=\n", "", false},
		{"line feed in between", StdBase64, "+/\n8=", "", false},
		{"line feeds for a group", StdBase64, "+/8=\n\n\n\n", "", false},
		{"blank", StdBase64, "+/8= ", "", false},
		{"more", StdBase64, "+/8=AAAA", "", false},
		{"URL", RawURLBase64, "-_8", "\xfb\xff", true},
		{"URL, nothing", RawURLBase64, "", "", true},
		{"URL, padded", RawURLBase64, "-_8=", "", false},
		{"URL, other alphabet", RawURLBase64, "+/8", "", false},
		{"URL, stray bits", RawURLBase64, "-_9", "", false},
		{"URL, carriage return", RawURLBase64, "-\r_8", "", false},
		{"URL, only line breaks", RawURLBase64, "\r\n", "", false},
	} {
		got, err := tt.encoding.Decode(tt.text)
		rig.Is(t, string(got), tt.want, "%s: %q", tt.name, tt.text)
		_, corrupt := errors.AsType[base64.CorruptInputError](err)
		rig.Is(t, corrupt, !tt.ok, "%s: %v is a base64.CorruptInputError", tt.name, err)
		appended, _ := tt.encoding.AppendDecode([]byte("before"), []byte(tt.text))
		rig.Is(t, string(appended), "before"+tt.want, "%s: %q, appended", tt.name, tt.text)
	}
}

// FuzzDecode: when text can be decoded, encoding the result gives the same text.
func FuzzDecode(f *testing.F) {
	f.Add("+/8=", "-_8")
	f.Add("AB==", "AB")
	f.Add("AA\n==", "A\rA")
	f.Fuzz(func(t *testing.T, std, raw string) {
		b, err := StdBase64.Decode(std)
		rig.Is(t, err != nil || base64.StdEncoding.EncodeToString(b) == std, true, "%q is %q", std, b)
		b, err = RawURLBase64.Decode(raw)
		rig.Is(t, err != nil || base64.RawURLEncoding.EncodeToString(b) == raw, true, "%q is %q", raw, b)
	})
}
