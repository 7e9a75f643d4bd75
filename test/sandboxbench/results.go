package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Calls that are measured one by one.
const (
	callOpen   = "open to read"
	callStat   = "stat"
	callExec   = "fork, execve and wait"
	callCreate = "create a file"
	callWrite  = "open to write"
	callUnlink = "unlink"
	start      = "start of true"
)

// musts are the limits of what a sandbox may cost, as a multiple of another way.
var musts = map[string]string{
	callOpen:         "W ≤ 1.1 × landlock",
	callStat:         "W ≤ 1.1 × landlock",
	callExec:         "W ≤ 1.1 × landlock",
	callCreate:       "W ≤ 2.5 × continued",
	programs[0].name: "≤ 8 × bare on tmpfs",
	programs[1].name: "W ≤ 2.5 × bare",
	programs[2].name: "W ≤ 1.1 ×, S ≤ 1.5 × bare",
	programs[3].name: "S ≤ 6 × bare",
	start:            "≤ 1.3 × namespaces",
}

// results has the figures in seconds, one for each round, by row and way.
type results map[string]map[string][]float64

func (r results) add(row, way string, seconds float64) {
	if r[row] == nil {
		r[row] = map[string][]float64{}
	}
	r[row][way] = append(r[row][way], seconds)
}

// measure measures one round at a place, in an order that changes with the round.
func (b *bench) measure(ctx context.Context, p place, round int) error {
	order := append(slices.Clone(ways[round%len(ways):]), ways[:round%len(ways)]...)
	wanted := func(row string) bool { return b.only == "" || slices.Contains(strings.Split(b.only, ";"), row) }
	for _, w := range order {
		if wanted("calls") {
			if err := b.measureCalls(ctx, p, w); err != nil {
				return err
			}
		}
	}
	for _, program := range programs {
		for _, w := range order {
			if !wanted(program.name) || w.name == "continued" || w.readOnly && !program.readOnly {
				continue
			}
			if err := p.reset(ctx, program.again); err != nil {
				return err
			}
			out, _, err := b.output(ctx, w, p.workspace(), b.self, timeArg, program.script)
			if err != nil {
				return err
			}
			seconds, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if err != nil {
				return err
			}
			b.results.add(program.name+", "+p.name, w.name, seconds)
		}
	}
	for range 10 {
		for _, w := range order {
			if !wanted(start) || w.name == "continued" || p.name != "tmpfs" {
				continue
			}
			_, took, err := b.output(ctx, w, p.workspace(), "/bin/true")
			if err != nil {
				return err
			}
			b.results.add(start, w.name, took.Seconds())
		}
	}
	return nil
}

// measureCalls measures single calls.
func (b *bench) measureCalls(ctx context.Context, p place, w way) error {
	argv := []string{b.self, callsArg}
	if !w.readOnly {
		argv = append(argv, "writes")
	}
	out, _, err := b.output(ctx, w, p.workspace(), argv...)
	if err != nil {
		return err
	}
	took := map[string]float64{}
	if err := json.Unmarshal([]byte(out), &took); err != nil {
		return err
	}
	for name, seconds := range took {
		if w.name != "continued" || name == callCreate {
			b.results.add(name+", "+p.name, w.name, seconds)
		}
	}
	return p.clear()
}

// print prints the medians, and the ratio to bare in the same round, as the median of the rounds.
func (r results) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprint(w, "what")
	for _, way := range ways {
		fmt.Fprintf(w, "\t%s", way.name)
	}
	fmt.Fprintln(w, "\tmust be")
	for _, row := range r.rows() {
		fmt.Fprint(w, row)
		bare := r[row]["bare"]
		for _, way := range ways {
			figures := r[row][way.name]
			switch {
			case len(figures) == 0:
				fmt.Fprint(w, "\t")
			case way.name == "bare":
				fmt.Fprintf(w, "\t%v", round(median(figures)))
			default:
				ratios := make([]float64, len(figures))
				for i := range figures {
					ratios[i] = figures[i] / bare[i]
				}
				fmt.Fprintf(w, "\t%v %.2f ×", round(median(figures)), median(ratios))
			}
		}
		name, _, _ := strings.Cut(row, ", tmpfs")
		name, _, _ = strings.Cut(name, ", disk")
		fmt.Fprintf(w, "\t%s\n", musts[name])
	}
}

// rows returns the rows in the order of their first columns' time.
func (r results) rows() []string {
	var rows []string
	for row := range r {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b string) int { return cmp.Compare(median(r[a]["bare"]), median(r[b]["bare"])) })
	return rows
}

func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// round returns a time with three digits or so.
func round(seconds float64) time.Duration {
	d := time.Duration(seconds * 1e9)
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Nanosecond)
}
