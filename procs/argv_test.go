package procs

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/execagent/execagent/test/rig"
)

func TestClipArgv(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("x", 10_000)
	many := make([]string, 1000)
	for _, tt := range []struct {
		name string
		argv []string
		want []string
	}{
		{"short", []string{"ls", "", "-l"}, []string{"ls", "", "-l"}},
		{"just fits", []string{x[:4080]}, []string{x[:4080]}},
		{"just does not", []string{x[:4081]}, []string{x[:4077] + "…"}},
		{"long", []string{"sh", "-c", x, "more"}, []string{"sh", "-c", x[:4096-3*16-4-3] + "…"}},
		{"by characters", []string{strings.Repeat("ä", 3000)}, []string{strings.Repeat("ä", 2038) + "…"}},
		{"a long one follows", []string{x[:4040], x}, []string{x[:4040], x[:21] + "…"}},
		{"no room to follow", []string{x[:4070], "more"}, []string{x[:4070] + "…"}},
		{"many", many, append(make([]string, 254), "…")},
	} {
		got := clipArgv(tt.argv)
		rig.Same(t, tt.name, tt.want, got)
		size := 0
		for _, arg := range got {
			size += 16 + len(arg)
			rig.Is(t, utf8.ValidString(arg), true, "%s: %q ends with a whole character", tt.name, arg)
		}
		if size > keptArgv || cap(got) > keptArgv/16 {
			t.Errorf("%s: %d bytes kept in %d places", tt.name, size, cap(got))
		}
	}
}

// TestArgvIsCopied: the kept part of a command does not keep the memory of the
// request that it came in.
func TestArgvIsCopied(t *testing.T) {
	t.Parallel()
	argv := []string{"true", strings.Repeat("x", 100_000)}
	p, _ := run(t, Spec{Argv: argv})
	rig.Is(t, len(p.Argv()), 2, "arguments")
	rig.Is(t, len(p.Argv()[1]) <= keptArgv, true, "bytes kept of the argument: %v, at most %v", len(p.Argv()[1]), keptArgv)
	argv[0] = "changed"
	rig.Is(t, p.Argv()[0], "true", "Argv()[0] after the caller changed its slice")
}

func TestTooLong(t *testing.T) {
	t.Parallel()
	full := strings.Repeat("x", maxString-1)
	part := strings.Repeat("x", 1<<20/16-9) // 16 of them: 1 MiB
	list := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = part
		}
		return list
	}
	for _, tt := range []struct {
		name      string
		argv, env []string
		want      bool
	}{
		{"nothing", nil, nil, false},
		{"longest argument", []string{full}, nil, false},
		{"longer argument", []string{full + "x"}, nil, true},
		{"longest variable", nil, []string{full}, false},
		{"longer variable", nil, []string{"a", full + "x"}, true},
		{"most together", list(48), list(48), false},
		{"more together", list(48), list(49), true},
		{"many empty", make([]string, maxStrings/9+1), nil, true},
	} {
		rig.Is(t, tooLong(tt.argv, tt.env), tt.want, "%s", tt.name)
	}
	// The kernel takes strings that are just not too long.
	run(t, Spec{Argv: []string{"true", full}, Env: []string{"A=" + full[2:], "PATH=/bin:/usr/bin"}})
}
