package rulefile

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

var bounds = Bounds{FileBytes: 1 << 20, Rules: 20_000}

func parse(text string) (*rule.Set, error) {
	return Parse(&rule.Set{}, "f.rules", []byte(text), bounds)
}

// TestRefused: what is wrong is named, with its place, and nothing of the file counts.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"syntax", "prefix_rule(pattern=['a'])\nx = = 1", "f.rules:2:5: "},
		{"rule", "x = 1\nprefix_rule(pattern=[])", "f.rules:2:12: invalid pattern element: pattern cannot be empty"},
		{"in a function", "def f():\n  prefix_rule(pattern=[1])\nf()", "f.rules:2:14: invalid pattern element"},
		{"name", "\n\nprint('x')", "f.rules:3:1: Variable `print` not found"},
		{"set", "set([])", "f.rules:1:1: "},
		{"bytes", "bytes('x')", "f.rules:1:1: Variable `bytes` not found"},
		{"undefined", "x = y", "f.rules:1:5: undefined: y"},
		{"name of the meter", "x = __binary", "f.rules:1:5: undefined: __binary"},
		{"attribute of the meter", "x = attribute()", "f.rules:1:5: undefined: attribute"},
		{"key of the meter", "x = key()", "f.rules:1:5: undefined: key"},
		{"copy of the meter", "x = copied()", "f.rules:1:5: undefined: copied"},
		{"byte-order mark", "\ufeffprefix_rule(pattern=['a'])", "f.rules:1:1: a byte-order mark is not allowed"},
		{"tab", "if True:\n\tprefix_rule(pattern=['a'])", "f.rules:2:1: tabs are not allowed for indentation"},
		{"load", "x = 1\nload('x', 'y')", "f.rules:2:1: No imports are available"},
		{"while", "while True:\n  pass", "f.rules:1:1: "},
		{"annotation", "def f(x: str):\n  pass", "f.rules:1:9: "},
		{"example", "x = 1\nprefix_rule(pattern=['a'], match=['b c'])", "f.rules:2:12: expected every example to match at least one rule. unmatched examples: b c"},
		{"not an example", "prefix_rule(pattern=['a'], not_match=['a b'])", "f.rules:1:12: expected example to not match rule: a b"},
		{"f-string open", "x = f'{'", "f.rules:1:7: an f-string"},
		{"f-string close", "x = f'}'", "f.rules:1:7: a single }"},
		{"f-string empty", "x = f'{ }'", "f.rules:1:7: an empty expression"},
		{"f-string format", "y = 1\nx = f'{y:3}'", "f.rules:2:7: an f-string"},
		{"f-string string", `x = f'{"a"}'`, "f.rules:1:7: an f-string"},
		{"f-string undefined", "\nx = f'{zz}'", "f.rules:2:"},
		{"place", "x = [[1]]\nx[0][0] += 1", "f.rules:2:1: this place cannot be changed by +="},
	} {
		rules, err := parse(tt.text)
		e, ok := errors.AsType[*Error](err)
		rig.Is(t, ok && rules == nil && strings.HasPrefix(e.Error(), tt.want), true, "%s: %v, %v: refused with %q", tt.name, rules, err, tt.want)
	}
	rig.Is(t, rig.Err(parse("\xff")), ErrNotText, "no UTF-8")
}

// languageTable has what files compute, as the words of a rule joined by blanks.
var languageTable = map[string]string{
	`x = ["a"]; y = x; x += ["b"]; r(y)`: "a b",
	`x = ["a"]; x += x; r(x)`:            "a a",
	`key = "a"; copied = {}; copied[key] = "b"; attribute = "c"; r([copied[key], attribute.upper()])`: "b C",
	`x = {"a": 1}; y = x; x |= {"b": 2}; r(y.keys())`:                                                 "a b",
	`x = {"a": 1}; x["a"] += 4; r([str(x["a"])])`:                                                     "5",
	`x = 7; x -= 2; x *= 3; x //= 2; x %= 4; r([str(x)])`:                                             "3",
	`x = "a"; x += "b"; r([x * 2])`:                                                                   "abab",
	`r(["%s-%d" % ("a", 1)])`:                                                                         "a-1",
	`r([str(1 in [1, 2]), str(3 not in [1]), str("a" < "b")])`:                                        "True True True",
	`r(sorted(["b", "a"], key=lambda x: x))`:                                                          "a b",
	`r(sorted(["b", "a"], reverse=True))`:                                                             "b a",
	`r([",".join(["a", "b"]), "aXb".replace("X", "-"), "a b".upper()])`:                               "a,b a-b A B",
	`r(list("ab".elems()) + list("cd".codepoints()))`:                                                 "a b c d",
	`r([x + y for x in ["a"] for y in ["b", "c"] if y != "b"])`:                                       "ac",
	`r([{(1, 2): "t"}[(1, 2)], [["n"]][0][0], "abcd"[1:3]])`:                                          "t n bc",
	`def f(*a, **k): return list(a) + k.keys()
r(f(*["a", "b"], **{"c": 1}))`: "a b c",
	`f = "a-b".split; r(f("-"))`:                                         "a b",
	`r([getattr("A", "lower")(), getattr("x", "no", "d")])`:              "a d",
	`r([str(dict([("a", 1)])), repr([1, (2,)]), str(min(3, 2))])`:        `{"a": 1} [1, (2,)] 2`,
	`x = 3; r([f"a{x}b{x + 1}", f'"{x}"', f"{{{x}}}", f""])`:             `a3b4 "3" {3} `,
	"x = 1; r([f'''a\n{x}''', f\"\\x41\\t{x}\", f'\\'{[1, 2][0] + x}'])": "a\n1 A\t1 '2",
	`r(["f{x}", r"\{"])`: `f{x} \{`,
}

// TestLanguage: what an instrumented file computes is what the language says.
func TestLanguage(t *testing.T) {
	t.Parallel()
	for text, want := range languageTable {
		rules, err := parse("def r(words): prefix_rule(pattern=words)\n" + text)
		rig.Must(t, err)
		rig.Is(t, hasRule(rules, want), true, "%s: there is %q", text, want)
	}
}

// hasRule reports whether the words of the one rule, joined by blanks, are want.
func hasRule(rules *rule.Set, want string) bool {
	words := strings.Split(want, " ")
	var try func(argv []string, rest []string) bool
	try = func(argv, rest []string) bool { // words may have blanks themselves
		if len(rest) == 0 {
			return len(rules.Match(argv)) == 1
		}
		for n := 1; n <= len(rest); n++ {
			if try(append(slices.Clip(argv), strings.Join(rest[:n], " ")), rest[n:]) {
				return true
			}
		}
		return false
	}
	return try(nil, words)
}

// TestMeter: what would take much memory or long is refused, however few steps it has. Each of
// these would otherwise take gigabytes, or not end.
func TestMeter(t *testing.T) {
	t.Parallel()
	double := func(start, step string) string { return start + strings.Repeat("\n"+step, 64) }
	for name, text := range map[string]string{
		"text":            double("x = 'abc'", "x = x + x"),
		"text in place":   double("x = 'abc'", "x += x"),
		"list":            double("x = [1]", "x = x + x"),
		"list in place":   double("x = [1]", "x += x"),
		"extend":          double("x = [1]", "x.extend(x)"),
		"many times":      "x = 'abc' * (1 << 40)",
		"a list of times": "x = [1] * (1 << 28)",
		"range":           "x = list(range(1 << 60))",
		"range sorted":    "x = sorted(range(1 << 28))",
		"range max":       "x = max(range(1 << 31 - 1))",
		"range in":        "x = 'a' in list(range(1 << 31 - 1))",
		"range spread":    "def f(*x): pass\nf(*range(1 << 28))",
		"range update":    "x = []\nx += range(1 << 28)",
		"range slice":     "x = [1]\nx.extend(range(1 << 28))",
		"join":            "x = ('a' * 100000).join(['b'] * 100000)",
		"replace":         "x = ('a' * 100000).replace('a', 'b' * 100000)",
		"replace nothing": "x = ('a' * 100000).replace('', 'b' * 100000)",
		"format":          "x = ('{0}' * 10000).format('b' * 100000)",
		"percent":         "x = ('%s' * 1000) % tuple(['b' * 100000] * 1000)",
		"square":          double("x = 1 << 500", "x = x * x"),
		"shift":           double("x = 1", "x = x << 500"),
		"digits":          "x = int('9' * 100000)",
		"power":           "x = 10\n" + strings.Repeat("x = x * x\n", 20) + "y = str(x)",
		"repr of a tree":  double("x = [1]", "x = [x, x]") + "\ny = str(x)",
		"repr from above": "x = [[] for i in range(60)]\nfor i in range(59):\n  x[i].append(x[i + 1]); x[i].append(x[i + 1])\ny = repr(x[0])",
		"itself":          "x = []\nx.append(x)\ny = str(x)",
		"hash of a tree":  double("x = (1,)", "x = (x, x)") + "\ny = {x: 1}",
		"hash as key":     double("x = (1,)", "x = (x, x)") + "\ny = {}\ny[x] = 1",
		"hash get":        double("x = (1,)", "x = (x, x)") + "\ny = {}.get(x)",
		"hash of args":    "def f(n, *a):\n  return a if n == 0 else f(n - 1, a, a)\ny = {f(40): 1}",
		"compare trees":   double("x = [1]", "x = [x, x]") + "\ny = x == x",
		"compare wide":    "x = [1] * 1000\n" + strings.Repeat("x = [x] * 1000\n", 8) + "y = x == x[:]",
		"f-string":        double("x = 'abc'", "x = f'{x}{x}'"),
		"fail":            double("x = [1]", "x = [x, x]") + "\nfail(x)",
		"dict union":      double("x = {i: i for i in range(1000)}", "x = x | x") + strings.Repeat("\nx = x | x", 2000),
		"steps":           "def f(n):\n  for i in range(n):\n    for j in range(n):\n      pass\nf(1 << 40)",
		"endless":         "for i in range(1 << 60):\n  pass",
		"calls":           "def f(n):\n  return f(n + 1)\nf(0)",
		"slices":          "x = [1] * 100000\ny = [x[:] for i in range(5000)]",
		"free slices":     "def copied(x): return x\ndef key(x): return x\nx = [1] * 100000\ny = [x[:] for i in range(5000)]",
		"items":           "x = {i: i for i in range(5000)}\ny = [x.items() for i in range(5000)]",
		"splits":          "x = 'a ' * 100000\ny = [x.split() for i in range(5000)]",
		"sorts":           "x = list(range(100000))\ny = [sorted(x) for i in range(5000)]",
		"nested":          "x = " + strings.Repeat("(", 3000) + strings.Repeat(")", 3000),
		"long sum":        "x = 1" + strings.Repeat("+1", 200_000),
		"long suffix":     "x = 1" + strings.Repeat("[0]", 200_000),
		"long calls":      "x = 1" + strings.Repeat("()", 200_000),
		"long or":         "x = 1" + strings.Repeat(" or 1", 100_000),
		"shared places":   "w = ['a'] * 100000\nfor i in range(900):\n  prefix_rule(pattern=['x'] + [w] * 100)",
		"shared examples": "w = ['a'] * 10000\nfor i in range(900):\n  prefix_rule(pattern=['a'], match=[w] * 100)",
		"first words":     "prefix_rule(pattern=[['a'] * 20000] + ['b'] * 20000)",
		"all examples":    "prefix_rule(pattern=[['a'] * 20000, ['c'] * 1000 + ['b']], match=['a b'] * 20000)",
		"justification":   "prefix_rule(pattern=[['a'] * 20000], justification='x' * 100000)",
		"paths":           "w = ['/b/a'] * 100000\nfor i in range(900):\n  host_executable(name='a', paths=w)",
		"rules":           "for i in range(3000):\n  prefix_rule(pattern=[['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'], 'x'])",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, err := parse(text)
			rig.Is(t, err != nil && rules == nil, true, "%v, %v: it is refused", rules, err)
		})
	}
}

// TestDepth: calls may be nested 49 deep, and no deeper.
func TestDepth(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{49: true, 50: false} {
		_, err := parse(fmt.Sprintf("def f(n):\n  if n > 1:\n    f(n - 1)\nf(%d)", n))
		rig.Is(t, err == nil, want, "%d calls: %v", n, err)
	}
}

// TestBounds: a file has no more bytes and rules than it may.
func TestBounds(t *testing.T) {
	t.Parallel()
	text := []byte(strings.Repeat("prefix_rule(pattern=['a'])\n", 3))
	earlier := &rule.Set{}
	earlier.Add(&rule.Rule{Pattern: [][]string{{"b"}}})
	for _, tt := range []struct {
		bounds Bounds
		want   bool
	}{
		{Bounds{len(text), 4}, true},
		{Bounds{len(text) - 1, 4}, false},
		{Bounds{len(text), 3}, false},
	} {
		rig.Is(t, rig.Err(Parse(earlier, "f", text, tt.bounds)) == nil, tt.want, "%+v", tt.bounds)
	}
}

// TestPlainFile: a file of a thousand plain rules is within the bounds on steps and weight, many
// times.
func TestPlainFile(t *testing.T) {
	t.Parallel()
	rig.Is(t, rig.Value(parse(plainFile(3_000))).Len(), 3_000, "rules")
}

func plainFile(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "prefix_rule(pattern=[\"program%d\", [\"sub\", \"other\"], \"-x\"], decision=\"prompt\", match=[\"program%d sub -x y\"])\n", i, i)
	}
	return b.String()
}

// BenchmarkParse is 1,000 rules, each with an example.
func BenchmarkParse(b *testing.B) {
	text := []byte(plainFile(1_000))
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, rig.Err(Parse(&rule.Set{}, "f.rules", text, bounds)))
	}
}

// FuzzParse: no text makes the loader panic, and an error has a place in the file.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		plainFile(2), "host_executable(name='git', paths=['/usr/bin/git'])", "network_rule(host='a', protocol='http', decision='deny')",
		"x = f'{y}{{'", "x += 1", "def f(*a, **k):\n  return [x for x in a if x]\nf(*[1], **{'b': 2})", "a[b] += c.d(e)[1:2]", "lambda x=1+1: x % 2",
		"x = 'a' * 9 + 'b'", "for a, (b, c) in {}.items():\n  pass", "'''\n\\\n'''", "if 1:\n\tx", "prefix_rule(['a'], 'allow', ['a \"b\\\\'])",
	} {
		f.Add(text)
	}
	small := Bounds{FileBytes: 4 << 10, Rules: 100}
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse(&rule.Set{}, "f", []byte(text), small)
		e, placed := errors.AsType[*Error](err)
		if err != nil && !placed && !errors.Is(err, ErrNotText) || placed && (e.Line < 1 || e.Column < 1 || e.File != "f") || err == nil && rules == nil {
			t.Fatalf("%v, %#v", rules, err)
		}
	})
}

// plainly evaluates a file as the library does by itself.
func plainly(text string) (*rule.Set, error) {
	src, err := source("f", []byte(text))
	if err != nil {
		return nil, err
	}
	e := &evaluation{file: "f", earlier: &rule.Set{}, rules: &rule.Set{}, maxRules: 100, meter: &meter{left: maxWeight}}
	names := starlark.StringDict{
		"prefix_rule": starlark.NewBuiltin("prefix_rule", e.prefixRule), "host_executable": starlark.NewBuiltin("host_executable", e.hostExecutable),
		"network_rule": starlark.NewBuiltin("network_rule", e.networkRule), textOf: starlark.Universe["str"],
	}
	options := &syntax.FileOptions{TopLevelControl: true, GlobalReassign: true, Recursion: true}
	_, err = starlark.ExecFileOptions(options, &starlark.Thread{}, "f", src, names)
	return e.rules, err
}

// FuzzInstrument: a file that is within its bounds makes the rules that it makes without them.
func FuzzInstrument(f *testing.F) {
	for _, text := range slices.Sorted(maps.Keys(languageTable)) {
		f.Add("def r(words): prefix_rule(pattern=words)\n" + text)
	}
	small := Bounds{FileBytes: 4 << 10, Rules: 100}
	f.Fuzz(func(t *testing.T, text string) {
		metered, err := Parse(&rule.Set{}, "f", []byte(text), small)
		if err != nil {
			return // without the bounds it might not end
		}
		plain, err := plainly(text)
		rig.Is(t, err == nil && reflect.DeepEqual(plain, metered), true, "metered: %+v\nplain: %+v, %v: the same", metered, plain, err)
	})
}

// FuzzSplitWords: no text makes the splitter of examples panic, and what is quoted is split as it
// was.
func FuzzSplitWords(f *testing.F) {
	for _, text := range []string{"a 'b c'", `a "b\"c" \ d`, "a #b", "a\\\nb", "''", `"\`} {
		f.Add(text, "x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		splitWords(a)
		rig.Same(t, "words", []string{a, b}, rig.Value(splitWords(rule.Quote([]string{a, b}))))
	})
}
