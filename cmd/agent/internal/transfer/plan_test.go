package transfer

import (
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Plan{
		"a :b":    {[]string{"a"}, "b", true},
		":a b":    {[]string{"a"}, "b", false},
		"a b :c":  {[]string{"a", "b"}, "c", true},
		":a :b .": {[]string{"a", "b"}, ".", false},
		"- :":     {[]string{"-"}, "", true},
		": -":     {[]string{""}, "-", false},
		":- x":    {[]string{"-"}, "x", false},
		"./:a :b": {[]string{"./:a"}, "b", true},
	} {
		got, err := NewPlan(strings.Fields(line))
		rig.Must(t, err)
		rig.Same(t, line, want, *got)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{":a"}, "at least two paths"},
		{[]string{"a", "b"}, "write a path on the agent as :PATH, as in :b"},
		{[]string{":a", ":b"}, "agent exec -- cp"},
		{[]string{":a", "b", "c"}, "on the same side"},
		{[]string{"a", ":b", ":c"}, "on the same side"},
		{[]string{"a", "-", ":c"}, "must be the only source"},
		{[]string{"", ":c"}, "a path is empty"},
		{[]string{":c", ""}, "a path is empty"},
	} {
		got, err := NewPlan(tt.args)
		rig.Is(t, err != nil && strings.Contains(err.Error(), tt.want), true, "%q: %v, %v, want %s", tt.args, got, err, tt.want)
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": "/w/.", ".": "/w/.", "./": "/w/", "a": "/w/a", "a/": "/w/a/", "a/.": "/w/a/.", "a/..": "/w/.", "..": "/", "/": "/", "/a/../b": "/b", "/.": "/", "a//b": "/w/a/b",
	} {
		rig.Is(t, at("/w", name), want, "%q", name)
	}
}

// TestLine: the bar fits into the terminal, whatever that is, and says what there is to say.
func TestLine(t *testing.T) {
	t.Parallel()
	const half = "[====================                    ]  50%  500.0 MB of 1.0 GB  50.0 MB/s  0:10 left"
	rig.Is(t, line(5e8, 1e9, 10*time.Second, 100, false), half, "the result")
	rig.Is(t, line(1e9, 1e9, time.Hour, 40, false), "100%  1.0 GB of 1.0 GB  277.8 kB/s  in ", "the result")
	got := line(5e8, 1e9, 10*time.Second, 100, true)
	rig.Is(t, strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "").Replace(got) == half, true, "got %q", got)
	for _, total := range []int64{-1, 0, 1, 999, 1e3, 1e12, 1 << 62} {
		for _, done := range []int64{0, 1, 1e6, 1 << 61} {
			for cols := range 120 {
				got := line(done, total, time.Second, cols, false)
				rig.Is(t, len(got) <= max(cols-1, 0), true, "%d of %d in %d columns: %q", done, total, cols, got)
			}
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 1 << 62: "4611.7 PB"} {
		rig.Is(t, size(n), want, "%d", n)
	}
}
