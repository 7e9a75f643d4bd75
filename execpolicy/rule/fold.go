package rule

import (
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// fold returns s without differences of case and of canonical spelling: two texts are canonically
// and caselessly equal, in the sense of Unicode, if fold makes the same of them.
func fold(s string) string {
	lower := true
	for i := range len(s) {
		if s[i] >= 0x80 {
			return norm.NFD.String(cases.Fold().String(norm.NFD.String(s)))
		}
		lower = lower && (s[i] < 'A' || s[i] > 'Z')
	}
	if lower {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	return string(b)
}
