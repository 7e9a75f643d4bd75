package console

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestParseKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "ctrl-a": "\x01", "ctrl-z": "\x1a", "ctrl-@": "\x00", "ctrl-[": "\x1b", `ctrl-\`: "\x1c", "ctrl-]": "\x1d",
		"ctrl-^": "\x1e", "ctrl-_": "\x1f", "a,b,C": "abC", "ctrl-x,~": "\x18~",
	} {
		got, err := ParseKeys(text)
		rig.Is(t, string(got) == want && err == nil, true, "%s is %q, %v, want %q", text, got, err, want)
	}
	for _, text := range []string{"", ",", "a,", "ctrl-", "ctrl-A", "ctrl-1", "ctrl-pp", "Ctrl-p", "ab", " ", "é", "\x01", strings.Repeat("a,", 16) + "a"} {
		rig.Is(t, rig.Err(ParseKeys(text)) != nil, true, "%q is refused", text)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	const both = "\x10\x11"
	for _, tt := range []struct {
		wanted string
		pieces []string
		rest   string
		asked  asked
	}{
		{both, []string{"ls\r"}, "ls\r", nothing},
		{both, []string{both}, "", leave},
		{both, []string{"\x10", "\x11"}, "", leave},
		{both, []string{"ls\x10", "\x11rest"}, "ls", leave},
		{both, []string{"\x10", "x"}, "\x10x", nothing},
		{both, []string{"\x10\x10\x11"}, "\x10", leave},
		{both, []string{"\x11\x10"}, "\x11", nothing}, // kept back
		{"aab", []string{"a", "a", "a", "b"}, "a", leave},
		{"aab", []string{"aaca"}, "aac", nothing},
		{"abab", []string{"ababab"}, "", leave},
		{"abac", []string{"ababac"}, "ab", leave},
		{"", []string{both}, both, nothing},
	} {
		k := keys{wanted: []byte(tt.wanted)}
		var rest strings.Builder
		last := nothing
		for _, piece := range tt.pieces {
			r, a := k.filter([]byte(piece))
			rest.Write(r)
			if last = a; a == leave {
				break
			}
		}
		rig.Is(t, rest.String(), tt.rest, "%q for %q: passed on", tt.pieces, tt.wanted)
		rig.Is(t, last, tt.asked, "%q for %q: asked for", tt.pieces, tt.wanted)
	}
}
