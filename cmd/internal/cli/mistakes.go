package cli

import (
	"fmt"
	"strings"
)

// UsageError describes a mistake in the command line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Meant returns the question whether the user meant a word, or "" for no word.
func Meant(word string) string {
	if word == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", word)
}

// nearest returns the known word that is most similar to word, or "" if no word is similar.
func nearest(word string, known []string) string {
	letters := len(strings.TrimLeft(word, "-"))
	best, least := "", min(2, max(1, letters/3))+1
	for _, k := range known {
		if len(word)-len(k) >= least {
			continue // at least this many letters must be removed, so a very long word costs no time
		}
		if d := distance(word, k); d < least && d < letters {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to change, add, remove or swap with the next letter.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := range len(a) {
		for j := range len(b) {
			d := rows[i][j]
			if a[i] != b[j] {
				d++
			}
			d = min(d, rows[i][j+1]+1, rows[i+1][j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, rows[i-1][j-1]+1)
			}
			rows[i+1][j+1] = d
		}
	}
	return rows[len(a)][len(b)]
}
