package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// limits are the time limits of tests on a quiet machine, and the file with the durations.
type limits struct {
	test, pkg time.Duration // 0 is no limit
	file      string        // "" is none
}

// durations are the durations of a run, in seconds of a quiet machine: the seconds of this machine,
// divided by its pace.
type durations struct {
	Packages map[string]float64 `json:"packages"`
	Tests    map[string]float64 `json:"tests"` // "PACKAGE TEST", for those that took noted or more
}

const (
	slowest = 10                     // how many tests are listed
	noted   = 100 * time.Millisecond // shorter tests are not in the file
	much    = time.Second            // a test is listed if it has become slower by more than this
)

// slow is a test, or the tests of a package, that took too long, and the line that says so.
type slow struct {
	test
	line string
}

// durations prints the slowest tests and the tests that have become slower, and writes the file. It
// returns the tests and packages that took longer than the limits allow.
func (r *report) durations(l limits) (over []slow, err error) {
	before, err := readDurations(l.file)
	if err != nil {
		return nil, err
	}
	now := durations{Packages: map[string]float64{}, Tests: map[string]float64{}}
	var all []ended
	var slower []string
	for _, e := range r.ended {
		limit, past, last := l.test, now.Tests, before.Tests
		key := e.pkg + " " + e.name
		if e.name == "" {
			limit, past, last, key = l.pkg, now.Packages, before.Packages, e.pkg
		} else if all = append(all, e); e.took < noted {
			continue
		}
		factor := r.speed.between(e.at.Add(-e.took), e.at)
		quiet := e.took.Seconds() / factor
		past[key] = quiet
		if was, known := last[key]; known && quiet > 2*was && quiet > was+much.Seconds() {
			slower = append(slower, fmt.Sprintf("%s: %.1f s, %.1f s at the run before", key, quiet, was))
		}
		if limit > 0 && quiet > limit.Seconds() {
			over = append(over, slow{e.test, fmt.Sprintf("%s: %.1f s, on a machine %.1f times slower than a quiet one; %v are allowed there: make it faster, or give it a higher tier (rig.Tier)",
				key, e.took.Seconds(), factor, limit)})
		}
	}
	slices.SortFunc(all, func(a, b ended) int { return cmp.Compare(b.took, a.took) })
	var lines []string
	for _, e := range all[:min(slowest, len(all))] {
		lines = append(lines, fmt.Sprintf("%6.2f s %s %s", e.took.Seconds(), e.pkg, e.name))
	}
	r.list("slowest tests", lines)
	r.list("slower than at the run before, in seconds of a quiet machine", slower)
	if l.file == "" {
		return over, nil
	}
	return over, before.write(l.file, now)
}

// readDurations reads the file of the previous run. Without a file it returns empty maps.
func readDurations(file string) (d durations, err error) {
	if file != "" {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &d)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return d, fmt.Errorf("the durations of the run before: %w; remove the file", err)
		}
	}
	if d.Packages == nil {
		d.Packages = map[string]float64{}
	}
	if d.Tests == nil {
		d.Tests = map[string]float64{}
	}
	return d, nil
}

// write writes the durations of the previous run, with those of this run's packages replaced.
func (d durations) write(file string, now durations) error {
	for key := range d.Tests {
		pkg, _, _ := strings.Cut(key, " ")
		if _, ran := now.Packages[pkg]; ran {
			delete(d.Tests, key)
		}
	}
	for key, seconds := range now.Tests {
		d.Tests[key] = seconds
	}
	for key, seconds := range now.Packages {
		d.Packages[key] = seconds
	}
	text, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
