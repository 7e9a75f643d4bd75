package main

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPrintable: what others have written does nothing to a terminal, and does not look like
// something else.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"build é": "build é", "": "", "a\x1b[2J": `"a\x1b[2J"`, "\u009b2J": `"\u009b2J"`, "a\u202eb": `"a\u202eb"`, "a\xffb": `"a\xffb"`, "a\nb": `"a\nb"`,
	} {
		rig.Is(t, printable(text), want, "%q is shown as", text)
	}
}
