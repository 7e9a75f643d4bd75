// Package helpertest is what the tests of the helpers share: how long they
// wait, and a testing.TB for the processes that they start, which are no tests.
package helpertest

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// Enough is how long a test waits for what has to happen, on any machine.
const Enough = 5 * time.Minute

// Eventually waits for what other processes and goroutines bring about.
func Eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(Enough)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", Enough, what)
		}
	}
}

// TB is what the functions of a test need in a process that is no test: Fatal ends the process.
type TB struct {
	testing.TB
	cleanups []func()
}

// Helper does nothing.
func (t *TB) Helper() {}

// Cleanup keeps f for End.
func (t *TB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Fatal says why and ends the process with code 98.
func (t *TB) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(98)
}

// TempDir is removed by End.
func (t *TB) TempDir() string {
	dir, err := os.MkdirTemp("/tmp", "execagent-helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// End does what Cleanup was told, the last first.
func (t *TB) End() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
