// Package commandline parses a line: which command it names, with which flags, and what is wrong
// with it, with the word that was meant.
package commandline

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// UsageError says what is wrong with the command line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Command returns the command that a line names, with the commands above it: "context add". It is
// "" for the default command. The error is a [UsageError] about a word that is none; habits are
// such words of other programs, behind the commands above them, and what is the nearest here.
func Command(app *kong.Application, args []string, habits map[string]string) (command string, err error) {
	var path []string
	node := app.Node
	for len(args) > 0 && len(node.Children) > 0 && !strings.HasPrefix(args[0], "-") {
		word := args[0]
		i := slices.IndexFunc(node.Children, func(child *kong.Node) bool {
			return child.Name == word || slices.Contains(child.Aliases, word)
		})
		if i < 0 {
			return strings.Join(path, " "), unknown(path, word, node, habits)
		}
		node, args = node.Children[i], args[1:]
		path = append(path, node.Name)
	}
	return strings.Join(path, " "), nil
}

func unknown(path []string, word string, node *kong.Node, habits map[string]string) error {
	above := ""
	if len(path) > 0 {
		above = strings.Join(path, " ") + " "
	}
	var known []string
	for _, child := range node.Children {
		if !child.Hidden {
			known = append(known, child.Name)
		}
	}
	meant := Near(word, known)
	habit := habits[above+word]
	if name, _, _ := strings.Cut(habit, " "); meant == "" && slices.Contains(known, name) {
		meant = habit
	}
	if meant != "" {
		meant = above + meant
	}
	return UsageError(fmt.Sprintf("unknown command %s%s%s", above, word, Meant(meant)))
}

// Meant asks whether a word was meant; it is "" for none.
func Meant(word string) string {
	if word == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", word)
}

// mends turn texts of the parser into what helps more. What is quoted in them stays.
var mends = []struct {
	text string // a regular expression, compiled only when a line is wrong
	with string
}{
	{`^(--?[\w-]+): expected \w+ value but got "EOL" \(<EOL>\)$`, "$1 needs a value"},
	{`^(--?[\w-]+): missing value, expecting .*$`, "$1 needs a value"},
	{`^(--?[\w-]+): expected \w+ value but got "--" .*$`, "$1 needs a value"},
	{`^(--?[\w-]+): expected \w+ value but got "(-.*)" \((?:short|long) flag\).*$`, "$1 needs a value; one that begins with - is written $1=$2"},
	{`^(--?[\w-]+): expected duration but got (".*"): time: .*$`, "$1: $2 is no duration such as 30s, 5m or 1h30m"},
	{`^(--?[\w-]+): expected a valid \d+ bit u?int but got (".*")$`, "$1: $2 is no number"},
}

// Wrong makes a [UsageError] of an error of [Parse].
func Wrong(err error) UsageError {
	text := err.Error()
	for _, m := range mends {
		text = regexp.MustCompile(m.text).ReplaceAllString(text, m.with)
	}
	return UsageError(text)
}

// Near returns the word that was meant, or "" where none is near.
func Near(word string, known []string) string {
	letters := len(strings.TrimLeft(word, "-"))
	best, least := "", min(2, max(1, letters/3))+1
	for _, k := range known {
		if d := distance(word, k); d < least && d < letters {
			best, least = k, d
		}
	}
	return best
}

// distance is how many letters have to be changed, added, removed or exchanged with the next one.
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
