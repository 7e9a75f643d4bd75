package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf16"
)

// listFlags say how to print a list.
type listFlags struct {
	Output string `short:"o" default:"table" enum:"table,json" placeholder:"FORMAT" help:"How to print it: table, or json for programs. Default: ${default}."`
	Quiet  bool   `short:"q" help:"Print only the names, a line each."`
}

// print prints the entries of a list: all of them as JSON, or for each its name or its row
// of the table.
func printList[T any](w io.Writer, f listFlags, entries []T, name func(T) string, heading string, row func(T) []string) error {
	switch {
	case f.Output == "json":
		if entries == nil {
			entries = []T{} // and not null
		}
		return printJSON(w, entries)
	case f.Quiet:
		for _, e := range entries {
			if _, err := fmt.Fprintln(w, name(e)); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(t, heading)
	for _, e := range entries {
		if err == nil {
			_, err = fmt.Fprintln(t, strings.Join(row(e), "\t"))
		}
	}
	if err != nil {
		return err
	}
	return t.Flush()
}

// printJSON writes v with escapes for all that a terminal could act upon: much of it is as a
// server says.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range text.String() {
		if r == '\n' || unicode.IsPrint(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&safe, `\u%04x`, unit) // it is in a string: the rest of JSON can be printed
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}
