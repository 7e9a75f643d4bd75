package sandboxtest

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// Enough is how long a test waits for something that has to happen: longer than
// it takes on any machine.
const Enough = 5 * time.Minute

// Eventually calls done every millisecond until it returns true. After [Enough]
// the test fails with the text what.
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

// TB is a testing.TB for a process that is no test. It has the methods below
// and no others: calling another one panics. It is for one goroutine.
type TB struct {
	testing.TB
	cleanups []func()
}

// Helper does nothing.
func (t *TB) Helper() {}

// Cleanup makes End call f.
func (t *TB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Fatal prints args to standard output and ends the process with code 98,
// without the cleanups.
func (t *TB) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(98)
}

// Fatalf does as Fatal.
func (t *TB) Fatalf(format string, args ...any) { t.Fatal(fmt.Sprintf(format, args...)) }

// TempDir returns a new directory, which End removes.
func (t *TB) TempDir() string {
	dir, err := os.MkdirTemp("", "execagent-helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// End calls the functions that Cleanup got, the last one first.
func (t *TB) End() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
