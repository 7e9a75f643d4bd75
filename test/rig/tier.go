package rig

import (
	"fmt"
	"os"
	"testing"
)

// A Level is how often a test runs. The variable TESTS names the highest level of a run: push,
// merge or nightly; without it the level is push.
type Level int

// The levels. A test belongs to the lowest level, push, unless it calls [Tier].
const (
	push    Level = iota // make test: each change. A test takes 5 seconds at most, a package 30.
	Merge                // make check: each merge
	Nightly              // make nightly: hunts, floods, faults, every kind of container
)

func (l Level) String() string { return [...]string{"push", "merge", "nightly"}[l] }

// Tier skips a test that belongs to a higher level than the run.
func Tier(t testing.TB, level Level) {
	t.Helper()
	if !Runs(level) {
		t.Skipf("runs with TESTS=%v", level)
	}
}

// Runs reports whether tests of a level run. A test that has a short form and a long form calls it.
func Runs(level Level) bool {
	value := os.Getenv("TESTS")
	if value == "" {
		return level <= push
	}
	for highest := push; highest <= Nightly; highest++ {
		if value == highest.String() {
			return level <= highest
		}
	}
	panic(fmt.Sprintf("TESTS is %q, want push, merge or nightly", value))
}
