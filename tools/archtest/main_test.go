package archtest

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests in the root of the repository, which they read.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must(t, err)
	return string(text)
}

// must ends a test of which a step failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// enough fails a test that has found so few things of a kind that its expression no longer fits them.
func enough(t *testing.T, what string, found, least int) {
	t.Helper()
	if found < least {
		t.Errorf("%d %s, want at least %d: the expression no longer finds them", found, what, least)
	}
}
