package program

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// PrintList prints a list: as a JSON array, or as a table.
func PrintList[Entry, Cell any](w io.Writer, asJSON bool, list []Entry, heading string, row func(Entry) []Cell) error {
	if asJSON {
		return PrintJSON(w, append([]Entry{}, list...)) // so that a nil list is [] and not null
	}
	return PrintTable(w, list, heading, row)
}

// PrintTable prints a list under a heading, in columns. The heading has tabs between its columns; row
// returns the cells of an entry.
func PrintTable[Entry, Cell any](w io.Writer, list []Entry, heading string, row func(Entry) []Cell) error {
	lines := []string{heading}
	for _, entry := range list {
		var cells []string
		for _, cell := range row(entry) {
			cells = append(cells, fmt.Sprint(cell))
		}
		lines = append(lines, strings.Join(cells, "\t"))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(t, strings.Join(lines, "\n")); err != nil {
		return err
	}
	return t.Flush()
}
