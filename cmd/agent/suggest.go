package main

import (
	"fmt"
	"strings"
)

// suggest returns a question about the word that was meant, or "" where none is near.
func suggest(word string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(word, k); d < least && d < len(k) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is how many letters have to be changed, added or removed (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// unknownFlag is the error for a word that looks like a flag, where the command of another
// program has to begin.
func unknownFlag(word string, flags any) error {
	name, _, _ := strings.Cut(word, "=")
	var known []string
	for _, f := range plainFields(flags) {
		if !f.arguments && !f.hidden {
			known = append(known, "--"+f.name)
		}
	}
	near := ""
	if strings.HasPrefix(name, "--") {
		near = suggest(name, known)
	}
	return fmt.Errorf("unknown flag %s%s (a command that begins with - comes after --)", name, near)
}

// givenFlags tells which flags are on a command line, up to the command of another program.
func givenFlags(args []string, fields []plainField) map[string]bool {
	p := plain{fields}
	given := map[string]bool{}
	for len(args) > 0 {
		arg := args[0]
		if !strings.HasPrefix(arg, "-") || arg == "--" {
			break
		}
		args = args[1:]
		name, _, inline := strings.Cut(arg, "=")
		f := p.find(name)
		if f == nil {
			continue
		}
		given[f.name] = true
		if !f.boolean() && !inline && len(args) > 0 {
			args = args[1:]
		}
	}
	return given
}
