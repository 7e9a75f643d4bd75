// Command relaybench measures an executor behind our registry, rendezvous and
// harness on loopback, and the reference beside it in the same run:
//
//	make bench-relay
//
// Compare the ratio of two executors in one run, because machines are noisy.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	var cfg programs
	flag.StringVar(&cfg.agent, "agent", "bin/agent", "our executor")
	flag.StringVar(&cfg.registry, "registry", "bin/registry", "our registry")
	flag.StringVar(&cfg.reference, "reference", os.Getenv("CODEX_BIN"), "the reference executor; empty leaves it out")
	rounds := flag.Int("rounds", 3, "rounds over both executors")
	only := flag.String("only", "", "comma-separated names of scenarios; empty is all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, cfg, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "relaybench:", err)
		os.Exit(1)
	}
}

// run measures. Every round has programs of its own: what one leaves behind is
// not to slow down the next.
func run(ctx context.Context, cfg programs, rounds int, only string) error {
	wanted := func(name string) bool { return only == "" || slices.Contains(strings.Split(only, ","), name) }
	results := map[string]map[string][]float64{} // by metric, then executor
	for round := range rounds {
		err := cfg.with(ctx, func(b *bench, ctx context.Context) error { return b.measureRound(ctx, round, wanted, results) })
		if err != nil {
			return err
		}
	}
	report(results)
	if wanted("registry") {
		if err := cfg.with(ctx, (*bench).measureRegistry); err != nil {
			return err
		}
	}
	if !wanted("fleet") {
		return nil
	}
	for _, absence := range []struct {
		away time.Duration
		must string
	}{{0, "all <= 2 s"}, {3 * time.Second, "99 % <= 5 s, all <= 8 s"}} {
		for range rounds {
			if err := cfg.with(ctx, func(b *bench, ctx context.Context) error { return b.measureFleet(ctx, absence.away, absence.must) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) measureRound(ctx context.Context, round int, wanted func(string) bool, results map[string]map[string][]float64) error {
	for _, s := range scenarios {
		if !wanted(s.name) {
			continue
		}
		for _, e := range b.executors {
			fmt.Fprintf(os.Stderr, "round %d: %s: %s\n", round+1, s.name, e.name)
			timed, cancel := context.WithTimeout(ctx, 2*time.Minute)
			figures, err := s.measure(timed, e)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, e.name, err)
			}
			for _, f := range figures {
				if results[f.metric] == nil {
					results[f.metric] = map[string][]float64{}
				}
				results[f.metric][e.name] = append(results[f.metric][e.name], f.value)
			}
		}
	}
	return nil
}

// target is what the ratio of a metric, ours to the reference, has to be.
type target struct {
	metric, unit string
	atMost       float64 // 0: none
	atLeast      float64
	absolute     float64 // of ours, at most
}

var targets = []target{
	{metric: "handshake", unit: "µs", atMost: 1},
	{metric: "handshake.cpu", unit: "µs", atMost: 1},
	{metric: "status", unit: "µs", atMost: 0.5},
	{metric: "status64", unit: "/s", atLeast: 1.3},
	{metric: "true", unit: "µs", atMost: 0.35},
	{metric: "true16", unit: "/s", atLeast: 4.5},
	{metric: "echo", unit: "µs", atMost: 0.5},
	{metric: "echo.flood", unit: "µs", atMost: 0.5},
	{metric: "echo.flood.p99", unit: "µs", atMost: 0.5},
	{metric: "stdout", unit: "MB/s", atLeast: 1.4},
	{metric: "stdout.cpu", unit: "s/GB", atMost: 0.45},
	{metric: "stdout.peak", unit: "MiB", absolute: 40},
	{metric: "stdin8", unit: "MB/s", atLeast: 1.8},
	{metric: "file8", unit: "MB/s", atLeast: 1.3},
	{metric: "stream.memory", unit: "KiB", atMost: 0.6},
	{metric: "streams32", unit: "MB/s", atLeast: 1.4},
	{metric: "streams32.fairness", unit: "last/first", absolute: 1.16},
	{metric: "streams32.peak", unit: "MiB", atMost: 0.5},
	{metric: "unread.growth", unit: "MiB", absolute: 64},
	{metric: "unread.lost", unit: "bytes", absolute: 0.5},
	{metric: "drop", unit: "ms", absolute: 30},
	{metric: "drop.again", unit: "ms", absolute: 30},
}

func report(results map[string]map[string][]float64) {
	fmt.Printf("%-20s %-10s %12s %12s %8s   %s\n", "metric", "unit", "reference", "ours", "ratio", "must be")
	for _, t := range targets {
		byName, ok := results[t.metric]
		if !ok {
			continue
		}
		ours, theirs := median(byName["ours"]), median(byName["reference"])
		ratio := "-"
		if len(byName["reference"]) > 0 && theirs != 0 {
			ratio = fmt.Sprintf("%.2f", ours/theirs)
		}
		verdict, ok := "", true
		switch {
		case t.atMost > 0:
			verdict, ok = fmt.Sprintf("<= %.2f x", t.atMost), ours <= t.atMost*theirs
		case t.atLeast > 0:
			verdict, ok = fmt.Sprintf(">= %.2f x", t.atLeast), ours >= t.atLeast*theirs
		case t.absolute > 0:
			verdict, ok = fmt.Sprintf("<= %g", t.absolute), ours <= t.absolute
		}
		if !ok {
			verdict += "  NOT met"
		}
		fmt.Printf("%-20s %-10s %12.1f %12.1f %8s   %s\n", t.metric, t.unit, theirs, ours, ratio, verdict)
	}
}

// median of the values, 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// percentile p, 0 to 100, of durations in microseconds.
func percentile(durations []time.Duration, p int) float64 {
	slices.Sort(durations)
	return float64(durations[min(len(durations)*p/100, len(durations)-1)]) / 1e3
}
