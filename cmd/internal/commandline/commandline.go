// Package commandline finds the command that a line names, and says what is wrong with a
// line: with the word that was meant, and where the help is.
package commandline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// UsageError says what is wrong with the command line.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Command returns the command that a line names, with the commands above it: "context add".
// It is "" for the default command. The error is a [UsageError] about a word that is none.
func Command(app *kong.Application, args []string) (command string, err error) {
	var path []string
	node := app.Node
	for len(args) > 0 && len(node.Children) > 0 && !strings.HasPrefix(args[0], "-") {
		word := args[0]
		i := slices.IndexFunc(node.Children, func(child *kong.Node) bool {
			return child.Name == word || slices.Contains(child.Aliases, word)
		})
		if i < 0 {
			return strings.Join(path, " "), unknown(path, word, node)
		}
		node, args = node.Children[i], args[1:]
		path = append(path, node.Name)
	}
	return strings.Join(path, " "), nil
}

func unknown(path []string, word string, node *kong.Node) error {
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
	meant := ""
	if near := Near(word, known); near != "" {
		meant = fmt.Sprintf("; did you mean %s%s?", above, near)
	}
	return UsageError(fmt.Sprintf("unknown command %s%s%s", above, word, meant))
}

// Wrong makes a [UsageError] of an error of the parser about a line of the command; fallback
// is the default command. It leaves out the name of the command, which the pointer to its help
// has, and the empty word that some flags take as default.
func Wrong(command, fallback string, err error) UsageError {
	if command == "" {
		command = fallback
	}
	text := strings.TrimPrefix(err.Error(), command+": ")
	return UsageError(strings.ReplaceAll(text, `"",`, ""))
}

// Near returns the word that was meant, or "" where none is near.
func Near(word string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(word, k); d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
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
