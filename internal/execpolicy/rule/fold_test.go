package rule

import (
	"strings"
	"testing"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// reference folds as Unicode says.
func reference(s string) string {
	return norm.NFD.String(cases.Fold().String(norm.NFD.String(s)))
}

// TestFold: every character is the same as another one exactly if it is so to golang.org/x/text.
// The letters of Cherokee, whose capitals came first, are the same only here, as Unicode says.
func TestFold(t *testing.T) {
	t.Parallel()
	ours, theirs := map[string]rune{}, map[string]rune{}
	for r := rune(1); r <= 0x10ffff; r++ {
		if r >= 0xd800 && r < 0xe000 || unicode.Is(unicode.Cherokee, r) {
			continue
		}
		if r == 0x30000 && !rig.Runs(rig.Merge) {
			break // no character of the planes above folds
		}
		s := string(r)
		a, b := fold(s), reference(s)
		x, inOurs := ours[a]
		y, inTheirs := theirs[b]
		if inOurs != inTheirs || x != y {
			t.Fatalf("%U: here it is as %U (%v), there as %U (%v)", r, x, inOurs, y, inTheirs)
		}
		if !inOurs {
			ours[a], theirs[b] = r, r
		}
		if fold(a) != a {
			t.Fatalf("%U becomes %+q, and that %+q", r, a, fold(a))
		}
	}
}

// TestFoldTexts: texts are the same exactly if they are so to golang.org/x/text.
func TestFoldTexts(t *testing.T) {
	t.Parallel()
	letters := rapid.SampledFrom(strings.Split("a A s S ß ẞ SS é e \u0301 É i I İ ı \u0307 ﬁ f F K k \u212a Σ ς σ ᾳ ᾼ \u0345 \u0301 ŉ ǰ ΐ ῒ Ω \u2126 ſ ﬅ", " "))
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.Custom(func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(letters, 0, 4).Draw(t, "letters"), "") })
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		rig.Is(t, fold(a) == fold(b), reference(a) == reference(b), "%+q and %+q: equal", a, b)
		rig.Is(t, fold(reference(a)), fold(a), "what %+q becomes", a)
	})
}
