package procs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/execagent/execagent/test/rig"
)

func TestEnviron(t *testing.T) {
	t.Parallel()
	server := []string{
		"PATH=/bin", "HOME=/root", "lang=C", "EDITOR=vi", "MY_TOKEN=t", "monkey=m", "secret_sauce=s",
		"OPENAI_API_KEY=o", "aws_session_token=a", "GOOGLE_APPLICATION_CREDENTIALS=g",
		"CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE=1", "EQ=a=b", "EMPTY=", "=odd", "noequals", "DUP=1", "DUP=2",
	}
	overlay := map[string]string{"A": "1"}
	for _, tt := range []struct {
		name    string
		policy  *EnvPolicy
		overlay map[string]string
		want    []string
	}{
		{"no policy", nil, overlay, []string{"A=1"}},
		{"no policy, nothing", nil, nil, []string{}},
		{"none", &EnvPolicy{Inherit: InheritNone}, overlay, []string{"A=1"}},
		{"zero policy", &EnvPolicy{}, overlay, []string{"A=1"}},
		{"core", &EnvPolicy{Inherit: InheritCore}, nil, []string{"HOME=/root", "PATH=/bin", "lang=C"}},
		{"all", &EnvPolicy{Inherit: InheritAll}, nil, []string{
			"DUP=2", "EDITOR=vi", "EMPTY=", "EQ=a=b", "HOME=/root", "PATH=/bin", "lang=C",
		}},
		{"without default excludes denied names stay out", &EnvPolicy{Inherit: InheritAll, IgnoreDefaultExcludes: true}, nil, []string{
			"DUP=2", "EDITOR=vi", "EMPTY=", "EQ=a=b", "HOME=/root", "MY_TOKEN=t", "PATH=/bin", "lang=C", "monkey=m", "secret_sauce=s",
		}},
		{"another user", &EnvPolicy{Inherit: InheritAll, OtherUser: true, Set: map[string]string{"EDITOR": "ed"}}, nil, []string{"EDITOR=ed", "PATH=/bin", "lang=C"}},
		{"another user, named", &EnvPolicy{Inherit: InheritAll, OtherUser: true, IncludeOnly: []string{"ED*"}}, nil, []string{"EDITOR=vi"}},
		{"exclude", &EnvPolicy{Inherit: InheritAll, Exclude: []string{"e*", "?ome", "DU", "L*G"}}, nil, []string{"DUP=2", "PATH=/bin"}},
		{"exclude spares set", &EnvPolicy{Inherit: InheritCore, Exclude: []string{"*"}, Set: map[string]string{"PATH": "/x"}}, nil, []string{"PATH=/x"}},
		{"set beats inherited, secrets pass", &EnvPolicy{
			Inherit: InheritCore, Set: map[string]string{"HOME": "/h", "OPENAI_API_KEY": "mine"},
		}, nil, []string{"HOME=/h", "OPENAI_API_KEY=mine", "PATH=/bin", "lang=C"}},
		{"includeOnly filters set, not the overlay", &EnvPolicy{
			Inherit: InheritAll, Set: map[string]string{"X": "1", "PATHS": "2"}, IncludeOnly: []string{"path*"},
		}, overlay, []string{"A=1", "PATH=/bin", "PATHS=2"}},
		{"overlay wins", &EnvPolicy{Inherit: InheritCore, Set: map[string]string{"HOME": "/h"}},
			map[string]string{"HOME": "/o", "PATH": ""}, []string{"HOME=/o", "PATH=", "lang=C"}},
		{"secrets of the overlay pass, the switch never", nil, map[string]string{
			"CODEX_ACCESS_TOKEN": "c", "codex_exec_server_exit_on_stdin_close": "1", "": "e", "a=b": "c",
		}, []string{"=e", "CODEX_ACCESS_TOKEN=c", "a=b=c"}},
		{"brackets are text", &EnvPolicy{Set: map[string]string{"[ab]": "1", "a": "2"}, IncludeOnly: []string{"[ab]"}}, nil, []string{"[ab]=1"}},
	} {
		rig.Same(t, tt.name, tt.want, tt.policy.Environ(server, tt.overlay))
	}
}

func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	names := func(n, size int) map[string]string {
		set := make(map[string]string, n)
		for i := range n {
			set[fmt.Sprintf("%0*d", size, i)] = ""
		}
		return set
	}
	text := func(n int) string { return strings.Repeat("a", n) }
	server := slices.Repeat([]string{"A_COMMON_VARIABLE_OF_A_HOST=" + text(100)}, 500)
	for _, tt := range []struct {
		name    string
		policy  *EnvPolicy
		overlay map[string]string
		want    string // begins the error; "": none
	}{
		{"no policy", nil, map[string]string{"A": text(maxString)}, ""},
		{"a rich policy", &EnvPolicy{
			Inherit: InheritAll, Exclude: slices.Repeat([]string{"*_SOMETHING_SECRET_*"}, 100),
			Set: names(500, 30), IncludeOnly: slices.Repeat([]string{"SOME_PREFIX_OF_NAMES_*"}, 100),
		}, names(500, 30), ""},
		{"longest and most", &EnvPolicy{
			Exclude: []string{text(maxGlob)}, IncludeOnly: slices.Repeat([]string{"a"}, maxGlobs), Set: names(maxGlobs, 4),
		}, nil, ""},
		{"the finding", &EnvPolicy{Set: map[string]string{text(50_000): ""}, IncludeOnly: []string{"*" + text(25_000) + "b"}},
			nil, "includeOnly: an entry of 25002 bytes"},
		{"long name", &EnvPolicy{Set: map[string]string{text(maxGlob + 1): ""}}, nil, "set: an entry of 1025 bytes"},
		{"long pattern", &EnvPolicy{Exclude: []string{text(maxGlob + 1)}}, nil, "exclude: an entry of 1025 bytes"},
		{"many names", &EnvPolicy{Set: names(maxGlobs+1, 4)}, nil, "set: 4097 entries"},
		{"many patterns", &EnvPolicy{Exclude: make([]string, maxGlobs+1)}, nil, "exclude: 4097 entries"},
		{"many patterns to keep", &EnvPolicy{IncludeOnly: make([]string, maxGlobs+1)}, nil, "includeOnly: 4097 entries"},
		{"much to match with what is inherited", &EnvPolicy{Inherit: InheritAll, Exclude: slices.Repeat([]string{text(1000)}, 10)},
			nil, "exclude: 10000 bytes of patterns for 13500 bytes of names"},
		{"nothing inherited", &EnvPolicy{Exclude: slices.Repeat([]string{text(1000)}, 10)}, nil, ""},
		{"much to match with set", &EnvPolicy{Set: names(100, 1000), IncludeOnly: []string{text(1001)}},
			nil, "includeOnly: 1001 bytes of patterns for 100000 bytes of names"},
		{"overlay beyond the kernel's", nil, map[string]string{"A": text(maxStrings)}, "env: 1 variables"},
	} {
		err := tt.policy.Check(server, tt.overlay)
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		rig.Is(t, min(len(fmt.Sprint(err)), 200), len(fmt.Sprint(err)), "%s: bytes of the error", tt.name)
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"OPENAI_API_KEY": true, "openai_api_key": true, "Aws_Access_Key_Id": true,
		"CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE": true, "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": true, "OPENAI_IDENTITY_TOKEN_FILE": true,
		"PATH": false, "": false, "OPENAI_API_KEY2": false, "AZURE_CLIENT_ID": false,
	} {
		rig.Is(t, Denied(name), want, "Denied(%q)", name)
	}
}

// naive does what pattern.match does, in exponential time.
func naive(pattern, name []rune) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0
	case pattern[0] == '*':
		return naive(pattern[1:], name) || len(name) > 0 && naive(pattern, name[1:])
	}
	return len(name) > 0 && (pattern[0] == '?' || pattern[0] == name[0]) && naive(pattern[1:], name[1:])
}

func FuzzEnvPolicy(f *testing.F) {
	f.Add("*", "", "PATH", "x")
	f.Add("P?TH", "*KEY*", "path", "y=z")
	f.Add("*a*a*b", "", "aaaaaaaaaaaaaaaa", "")
	f.Add("ÄÖ*", "ß?", "äöü", "\xff")
	f.Add("**?**", "[a]", "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE", "1")
	f.Fuzz(func(t *testing.T, include, exclude, name, value string) {
		p := &EnvPolicy{
			Inherit: InheritAll, IgnoreDefaultExcludes: true,
			Exclude: []string{exclude}, Set: map[string]string{name: value}, IncludeOnly: []string{include},
		}
		env := p.Environ([]string{name + "=server", "FIXED=1"}, nil)
		rig.Is(t, slices.IsSorted(env), true, "sorted: %q", env)
		if len(include) > 8 || len(name) > 12 || !utf8.ValidString(include+name) {
			return // this would take the model too long
		}
		lower := func(s string) []rune { return []rune(strings.ToLower(s)) }
		want := naive(lower(include), lower(name)) && !strings.EqualFold(name, neverPassed)
		if got := slices.Contains(env, name+"="+value); got != want && name+"="+value != "FIXED=1" {
			t.Errorf("%q under includeOnly %q: kept %v, want %v", name, include, got, want)
		}
	})
}

// BenchmarkEnvironHostile: the worst that passes Check.
func BenchmarkEnvironHostile(b *testing.B) {
	p := &EnvPolicy{IncludeOnly: slices.Repeat([]string{strings.Repeat("*a", 500) + "b"}, 10), Set: map[string]string{}}
	for i := range 9 {
		p.Set[strings.Repeat("a", 1000+i)] = ""
	}
	rig.Must(b, p.Check(nil, nil))
	b.ReportAllocs()
	for b.Loop() {
		p.Environ(nil, nil)
	}
}
