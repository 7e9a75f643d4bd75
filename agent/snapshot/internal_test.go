package snapshot

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/procs"
)

// TestCollector: only what is between marks is kept, however it comes in, and what somebody
// else prints in between is noticed.
func TestCollector(t *testing.T) {
	t.Parallel()
	k := kind{parts: 1, code: func(parts []string) string { return strings.Join(parts, "") }}
	const state = "code\x00A=1\x00PWD=/x\x00"
	for _, tt := range []struct {
		output string
		err    error
	}{
		{"noise MARMARK\x00" + state + "MARK\x00" + state + "MARK\x00 more", nil},
		{"MARK\x00" + state + "noiseMARK\x00" + state + "MARK\x00", errDiffers},
	} {
		for _, size := range []int{1, 3, len(tt.output)} {
			c := collector{mark: "MARK\x00", done: make(chan error, 1)}
			c.take(procs.Event{Kind: procs.Output, Stream: procs.Stderr, Data: []byte("MARK\x00")})
			for piece := range slices.Chunk([]byte(tt.output), size) {
				c.take(procs.Event{Kind: procs.Output, Stream: procs.Stdout, Data: piece})
			}
			c.take(procs.Event{Kind: procs.Exited, ExitCode: 1}) // its end has come before
			if err := <-c.done; err != nil {
				t.Fatalf("%q in pieces of %d: %v", tt.output, size, err)
			}
			s, err := parse(k, c.output(), "MARK", []string{"not-one=2", "B=3", "BASH_FUNC_f%%=x"})
			if !errors.Is(err, tt.err) {
				t.Fatalf("%q in pieces of %d: %v", tt.output, size, err)
			}
			if err == nil && (s.code != "code" || strings.Join(s.environ, " ") != "A=1 not-one=2") {
				t.Errorf("%q in pieces of %d: %+v", tt.output, size, s)
			}
		}
	}
}

// FuzzParse: whatever a shell prints, what is taken is within the bounds.
func FuzzParse(f *testing.F) {
	k, _ := kinds("sh")
	f.Add("set -o noglob\n\x00a='b\nc'\nalias d=\"e\"\n\x00A=1\x00_=x\x00")
	f.Add("\x00\x00")
	f.Fuzz(func(t *testing.T, output string) {
		s, err := parse(k, output+"MARK\x00"+output, "MARK", nil)
		if err != nil {
			return
		}
		if len(s.code) > maxCode || s.size() > 32*maxEnviron {
			t.Fatalf("%d bytes", s.size())
		}
		for _, record := range s.environ {
			if name, _, ok := strings.Cut(record, "="); !ok || !isVariable(name) || strings.Contains(record, "\x00") {
				t.Fatalf("%q", record)
			}
		}
		s.Apply([]string{"sh", "-lc", "true"}, nil, nil)
	})
}
