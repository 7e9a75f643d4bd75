package cli

import (
	"fmt"
	"strings"
)

// UsageError says what is wrong with the command line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Meant returns a question whether the user meant a word, "" for no word.
func Meant(word string) string {
	if word == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", word)
}

// nearest returns the known word that is most like word, or "" if none is like it.
func nearest(word string, known []string) string {
	letters := len(strings.TrimLeft(word, "-"))
	best, least := "", min(2, max(1, letters/3))+1
	for _, k := range known {
		if len(word)-len(k) >= least {
			continue // so much has to be removed: a word of any length costs nothing
		}
		if d := distance(word, k); d < least && d < letters {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to change, add, remove or exchange with the next one.
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
