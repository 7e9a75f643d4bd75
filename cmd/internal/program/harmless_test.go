package program

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestHarmless: a terminal acts upon nothing, however the text is cut.
func TestHarmless(t *testing.T) {
	t.Parallel()
	const text, want = "+é\tb\x1b[8mhidden\r\u202e\x9b2J\n€ ü😀\n", "+é\tb\ufffd[8mhidden\ufffd\ufffd\ufffd2J\n€ ü😀\n"
	for size := 1; size <= len(text); size++ {
		var out strings.Builder
		w := harmless{w: &out}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			rig.Is(t, fmt.Sprint(w.Write([]byte(rest[:n]))), fmt.Sprint(n, nil), "Write gives")
			rest = rest[n:]
		}
		rig.Is(t, out.String(), want, "in pieces of %d", size)
	}
}
