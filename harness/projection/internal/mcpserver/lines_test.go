package mcpserver

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// FuzzLines: however output is cut into pieces, the lines are the same.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nbc\n\nd"), uint8(2))
	f.Add([]byte("\n"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var l lines
		var got [][]byte
		for rest := text; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			rig.Must(t, l.add(rest[:n]))
			rest = rest[n:]
			for {
				line, ok := l.next()
				if !ok {
					break
				}
				got = append(got, line)
			}
		}
		want := bytes.Split(text, []byte("\n"))
		if len(got) != len(want)-1 || !bytes.Equal(bytes.Join(append(got, want[len(want)-1]), []byte("\n")), text) {
			t.Errorf("%q became %q", text, got)
		}
	})
}

// TestLineBound: a line of the largest size passes, and one more byte does not.
func TestLineBound(t *testing.T) {
	t.Parallel()
	for extra, ok := range []bool{true, false} {
		var l lines
		err := l.add([]byte(strings.Repeat("x", maxMessage-1)))
		if err == nil {
			err = l.add([]byte(strings.Repeat("x", 1+extra) + "\nrest"))
		}
		if line, found := l.next(); (err == nil) != ok || found != ok || ok && len(line) != maxMessage {
			t.Errorf("%d bytes more: %v, a line of %d bytes", extra, err, len(line))
		}
	}
}

// TestCost: values are counted alike in whatever pieces a text comes, and not in strings; no quote
// hides those of the lines behind it.
func TestCost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		``: 0, `{"a":[1,2,{}]}`: 5, `"a,[{"`: 0, `"\",[",1`: 1, "\"\n[1,2]": 2, `"\\",[`: 2, ": \"\\\n[1,2]": 2,
	} {
		var whole, pieces counter
		whole.add([]byte(text))
		for i := range len(text) {
			pieces.add([]byte(text[i : i+1]))
		}
		if whole.values != want || pieces != whole {
			t.Errorf("%s: %+v, in pieces %+v, want %d values", text, whole, pieces, want)
		}
	}
}

// TestAllowance: so much may be spent at once, and a little in each second after.
func TestAllowance(t *testing.T) {
	t.Parallel()
	var a allowance
	now := time.Unix(1, 0)
	for i, spend := range []struct {
		after time.Duration
		n     int
		ok    bool
	}{
		{0, maxUnasked, true}, {0, 0, true}, {time.Second, unaskedRate, true}, {0, 1, false}, {time.Hour, maxUnasked, true}, {0, 1, false},
	} {
		now = now.Add(spend.after)
		rig.Is(t, a.spend(spend.n, now), spend.ok, "%d", i)
	}
}
