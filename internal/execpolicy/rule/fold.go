package rule

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// fold returns s without differences of case and of canonical form. Two texts have the same fold
// exactly if they are canonical caseless matches in the sense of Unicode. Package cases of
// golang.org/x/text could do this too, but it brings tables of languages and initializes them at
// every start.
func fold(s string) string {
	lower := true
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return foldUnicode(s)
		}
		lower = lower && (s[i] < 'A' || s[i] > 'Z')
	}
	if lower {
		return s
	}
	return strings.ToLower(s)
}

func foldUnicode(s string) string {
	var b strings.Builder
	for _, r := range norm.NFD.String(s) {
		i, ok := slices.BinarySearchFunc(fullFold[:], r, func(f struct {
			from rune
			to   string
		}, r rune) int {
			return int(f.from - r)
		})
		if !ok {
			b.WriteRune(foldRune(r))
			continue
		}
		for _, r := range fullFold[i].to {
			b.WriteRune(foldRune(r))
		}
	}
	return norm.NFD.String(b.String())
}

// foldRune returns the representative of the characters that differ from r only by case: an ASCII
// letter if there is one, else the first of them in lower case.
func foldRune(r rune) rune {
	best := r
	for n := unicode.SimpleFold(r); n != r; n = unicode.SimpleFold(n) {
		if better(n, best) {
			best = n
		}
	}
	return best
}

func better(a, b rune) bool {
	if lower := unicode.IsLower(a); lower != unicode.IsLower(b) {
		return lower
	}
	return a < b
}
