package sandbox

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/execagent/execagent/internal/braces"
)

// maxChoices bounds the patterns without braces that one pattern with braces stands for.
const maxChoices = 1024

// newGlobs returns the globs of a pattern: one for each choice of its braces, so
// that matching need not deal with braces. A relative pattern starts at cwd.
func newGlobs(pattern, cwd string, depth int) ([]Glob, error) {
	if len(pattern) > MaxPath {
		return nil, fmt.Errorf("glob %q... is longer than %d bytes", pattern[:64], MaxPath)
	}
	if pattern == "" || strings.ContainsRune(pattern, 0) || !doublestar.ValidatePattern(pattern) {
		return nil, fmt.Errorf("glob %q is malformed", pattern)
	}
	choices, ok := braces.Expand(pattern, maxChoices)
	if !ok {
		return nil, fmt.Errorf("glob %q stands for more than %d patterns", pattern, maxChoices)
	}
	var globs []Glob
	for _, choice := range choices {
		base, rest := splitGlob(choice)
		if !path.IsAbs(choice) {
			base = path.Join(cwd, base)
		}
		base = path.Clean(base)
		rest, ok := cleanGlob(rest)
		switch {
		case !ok:
			return nil, fmt.Errorf("glob %q is ambiguous: it has empty names or dots behind its first wildcard", pattern)
		case base == "/":
			return nil, fmt.Errorf("glob %q has no fixed prefix but the root: it would have to be looked for everywhere", pattern)
		case len(base) > MaxPath:
			return nil, fmt.Errorf("glob %q is longer than %d bytes with its cwd", pattern, MaxPath)
		}
		globs = append(globs, Glob{Base: base, Pattern: rest, MaxDepth: depth})
	}
	return globs, nil
}

// size is what the glob counts against maxGlobs, in bytes.
func (g Glob) size() int { return len(g.Base) + len(g.Pattern) }

// splitGlob splits before the first name that has a wildcard, or before the
// last name if none has. The escapes in base are undone, because base is a
// path.
func splitGlob(pattern string) (base, rest string) {
	var literal strings.Builder
	end, split := 0, 0 // the length of base in literal; where rest begins in pattern
	for i := 0; i < len(pattern) && !strings.ContainsRune("*?[", rune(pattern[i])); i++ {
		if pattern[i] == '\\' {
			i++
		}
		if pattern[i] == '/' {
			end, split = literal.Len(), i+1
		}
		literal.WriteByte(pattern[i])
	}
	if split > 0 && end == 0 {
		return "/", pattern[split:]
	}
	return literal.String()[:end], pattern[split:]
}

// cleanGlob rewrites a pattern so that it matches clean paths: without empty
// names and dots. A "**" at its end becomes "**/*", because "**" would also
// match the directory itself, which is no file. It returns false for a pattern
// that no clean path can match. It also returns false for a pattern with classes
// or escapes that needs cleaning, because path.Clean would take a slash inside a
// class for the end of a name.
func cleanGlob(pattern string) (string, bool) {
	pattern = strings.TrimRight(pattern, "/")
	clean := path.Clean(pattern)
	if clean != pattern && strings.ContainsAny(pattern, `[]\`) || clean == "." || hasDotDot(clean) || !doublestar.ValidatePattern(clean) {
		return "", false
	}
	clean = cleanStars(clean)
	if strings.HasSuffix(clean, "/**") {
		clean += "/*"
	}
	return clean, true
}

// cleanStars replaces a row of stars by two if they are a whole name, else by
// one. The meaning is the same, but doublestar does not let three stars in a
// row match the empty string.
func cleanStars(pattern string) string {
	var clean strings.Builder
	inClass := false
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		clean.WriteByte(c)
		switch {
		case c == '\\':
			i++
			clean.WriteByte(pattern[i])
		case inClass:
			inClass = c != ']'
		case c == '[':
			inClass = true
		case c == '*':
			begin := i
			for i+1 < len(pattern) && pattern[i+1] == '*' {
				i++
			}
			whole := (begin == 0 || pattern[begin-1] == '/') && (i+1 == len(pattern) || pattern[i+1] == '/')
			if whole && i > begin {
				clean.WriteByte('*')
			}
		}
	}
	return clean.String()
}

// CompactGlobs sorts the globs in place and returns them without duplicates.
func CompactGlobs(globs []Glob) []Glob {
	sort.Slice(globs, func(i, j int) bool {
		a, b := globs[i], globs[j]
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.MaxDepth, b.MaxDepth)) < 0
	})
	return slices.Compact(globs)
}
