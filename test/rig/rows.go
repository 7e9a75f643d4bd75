package rig

import (
	"os"
	"strconv"
	"strings"
)

// A Section is a part of a file of test cases: a line "-- name --", and the text below it.
type Section struct{ Name, Text string }

// Remark returns the rest of the section's first line "# about: ..."; "" if there is none.
func (s Section) Remark(about string) string {
	for line := range strings.Lines(s.Text) {
		if rest, ok := strings.CutPrefix(line, "# "+about+": "); ok {
			return strings.TrimSuffix(rest, "\n")
		}
	}
	return ""
}

// Sections returns the sections of a file, without what stands above the first one. There is one at least.
func Sections(t failer, file string) (all []Section) {
	t.Helper()
	text, err := os.ReadFile(file)
	Must(t, err)
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --\n") {
			all = append(all, Section{Name: strings.TrimSuffix(name, " --\n")})
		} else if len(all) > 0 {
			all[len(all)-1].Text += line
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no section", file)
	}
	return all
}

// Rows returns the rows of a table, which is a section of a file. A row is a line, and two blanks or
// more part its cells. A cell in quotes is a Go string, for what is empty, has blanks at its ends or
// cannot be seen. Empty lines and those that begin with # are not rows.
func Rows(t failer, file, table string, cells int) (rows [][]string) {
	t.Helper()
	for _, s := range Sections(t, file) {
		for line := range strings.SplitSeq(s.Text, "\n") {
			if s.Name != table || line == "" || line[0] == '#' {
				continue
			}
			row := cellsOf(line)
			if len(row) != cells {
				t.Fatalf("%s: a row of table %s has not %d cells: %q", file, table, cells, line)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table %s", file, table)
	}
	return rows
}

// cellsOf returns the cells of a line, and none if something stands beside a quoted one.
func cellsOf(line string) (cells []string) {
	for line != "" {
		cell, rest, _ := strings.Cut(line, "  ")
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			if cell, rest = Value(strconv.Unquote(quoted)), line[len(quoted):]; rest != "" && !strings.HasPrefix(rest, "  ") {
				return nil
			}
		}
		cells, line = append(cells, cell), strings.TrimLeft(rest, " ")
	}
	return cells
}
