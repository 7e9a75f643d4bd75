// Package braces expands the braces of globs, so that a matcher need not deal with them: it would look at each
// choice of each brace wherever it comes to one.
package braces

import "iter"

// Expand returns the patterns without braces that a pattern stands for, as a shell expands them. The pattern is
// valid in the syntax of doublestar. ok is false if it stands for more than most.
func Expand(pattern string, most int) (choices []string, ok bool) {
	if count(pattern, most+1) > most {
		return nil, false
	}
	return expand(lean(pattern)), true
}

// lean returns a pattern without its braces that have no comma, because each of them stands for one pattern, but
// would cost a copy of the pattern for each choice of all the others.
func lean(pattern string) string {
	type brace struct {
		at     int
		commas bool
	}
	var open []brace
	drop := make([]bool, len(pattern))
	for i, c := range special(pattern) {
		last := len(open) - 1
		switch {
		case c == '{':
			open = append(open, brace{at: i})
		case c == ',' && last >= 0:
			open[last].commas = true
		case c == '}' && last >= 0:
			drop[open[last].at], drop[i] = !open[last].commas, !open[last].commas
			open = open[:last]
		}
	}
	kept := make([]byte, 0, len(pattern))
	for i, out := range drop {
		if !out {
			kept = append(kept, pattern[i])
		}
	}
	return string(kept)
}

// count returns how many patterns without braces a valid pattern stands for, or
// limit if there are more.
func count(pattern string, limit int) int {
	// Each open brace has the choices of its complete alternatives, and of the
	// current one.
	type level struct{ complete, current int }
	levels := []level{{0, 1}}
	for _, c := range special(pattern) {
		top := &levels[len(levels)-1]
		switch {
		case c == '{':
			levels = append(levels, level{0, 1})
		case len(levels) == 1:
			// A comma that separates nothing.
		case c == ',':
			top.complete = min(top.complete+top.current, limit)
			top.current = 1
		case c == '}':
			choices := min(top.complete+top.current, limit)
			levels = levels[:len(levels)-1]
			below := &levels[len(levels)-1]
			below.current = min(below.current*choices, limit)
		}
	}
	return levels[0].current
}

func expand(pattern string) []string {
	var cuts []int // the first brace, its commas and its end
	depth := 0
	for i, c := range special(pattern) {
		switch {
		case c == '{':
			depth++
			if depth == 1 {
				cuts = append(cuts, i)
			}
		case depth == 1:
			cuts = append(cuts, i)
		}
		if c == '}' {
			depth--
			if depth == 0 {
				break
			}
		}
	}
	if len(cuts) == 0 {
		return []string{pattern}
	}
	var all []string
	before, after := pattern[:cuts[0]], pattern[cuts[len(cuts)-1]+1:]
	for i, cut := range cuts[1:] {
		all = append(all, expand(before+pattern[cuts[i]+1:cut]+after)...)
	}
	return all
}

// special yields the braces and commas of a pattern that are neither escaped
// nor in a class, as doublestar sees them.
func special(pattern string) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		inClass := false
		for i := 0; i < len(pattern); i++ {
			switch c := pattern[i]; {
			case c == '\\':
				i++
			case inClass:
				inClass = c != ']'
			case c == '[':
				inClass = true
			case c == '{' || c == ',' || c == '}':
				if !yield(i, c) {
					return
				}
			}
		}
	}
}
