package threadlog

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, test := range []struct {
		name, output, want string
		cut                bool
	}{
		{"empty", "", "", false},
		{"short", "a\x00<é>", "a\x00<é>", false},
		{"exactly", x(MaxOutput), x(MaxOutput), false},
		{"one more", x(MaxOutput + 1), x(MaxOutput), true},
		{"ends like it begins", x(3 * MaxOutput), x(MaxOutput), true},
		{"a rune of 2 bytes across the end", x(MaxOutput-1) + "é", x(MaxOutput - 1), true},
		{"a rune of 3 bytes across the end", x(MaxOutput-2) + "€y", x(MaxOutput - 2), true},
		{"a rune of 4 bytes across the end", x(MaxOutput-3) + "😀", x(MaxOutput - 3), true},
		{"a rune of 4 bytes at the end", x(MaxOutput-4) + "😀", x(MaxOutput-4) + "😀", false},
		{"not UTF-8", "a\xff\xfeb", "a\uFFFDb", false},
		{"half a rune at its end", "a\xe2\x82", "a\uFFFD", false},
		{"nothing but bytes that are not UTF-8", strings.Repeat("\xff", MaxOutput), "\uFFFD", false},
		{"longer by replacements", strings.Repeat("\xffa", MaxOutput/2), strings.Repeat("\uFFFDa", MaxOutput/4), true},
		{"nothing but continuations", strings.Repeat("\x80", MaxOutput+5), "\uFFFD", true},
	} {
		got, cut := summary(test.output)
		if got != test.want || cut != test.cut {
			t.Errorf("%s: %d bytes %.20q…, cut %v; want %d bytes %.20q…, cut %v", test.name, len(got), got, cut, len(test.want), test.want, test.cut)
		}
		if len(got) > MaxOutput || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid %v", test.name, len(got), utf8.ValidString(got))
		}
	}
}
