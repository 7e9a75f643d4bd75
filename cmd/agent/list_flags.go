package main

import (
	"fmt"
	"io"

	"github.com/execagent/execagent/cmd/internal/program"
)

// listFlags say how to print a list.
type listFlags struct {
	Output string `short:"o" default:"table" enum:"table,json" placeholder:"FORMAT" help:"Output format: table, or json for programs. Default: ${default}."`
	Quiet  bool   `short:"q" help:"Print only the names, one on each line."`
}

// printList prints the entries of a list: as JSON, as a table, or with -q only their names.
func printList[T any](w io.Writer, f listFlags, entries []T, name func(T) string, heading string, row func(T) []string) error {
	if !f.Quiet || f.Output == "json" {
		return program.PrintList(w, f.Output == "json", entries, heading, row)
	}
	for _, e := range entries {
		if _, err := fmt.Fprintln(w, name(e)); err != nil {
			return err
		}
	}
	return nil
}
