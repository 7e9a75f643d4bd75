package tomltext

import (
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/test/rig"
)

// TestNesting: brackets and dots count that are outside of strings and comments.
func TestNesting(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"":                                 0,
		"a = 1":                            0,
		"[a.b.c]":                          2,
		"a = [[1], [[2]]]":                 3,
		"a = {b = [1]}":                    2,
		"a.b.c.d = 1":                      3,
		"a = '[[[[' # [[[[[\nb = \"[[[[\"": 0,
		`a = ["\"", [[[[1]]]]]`:            5,
		"a = ['''\n[[[[[''', [1]]":         2,
		"a = [\"\"\"\n\\\"\"\"[[[\"\"\"]":  1,
		"a = '[[[[[\nb = [[1]]":            2,
		"a = \"":                           0,
		"a = \"\"\"[[":                     0,
		strings.Repeat("[", 1000):          1000,
		"a = ''\nb = [1]":                  1,
		"a = 1.5\nb = 1.5":                 1,
		"]]]]a = [[1]]":                    2,
		"a = {b = [{c = 1}]}":              3,
		"# x\n[[[a]":                       3,
		"a = [\"\"\"x\"\"\"\", [[[1]]]":    4,
		"a = \"x\n[b]":                     1,
	} {
		rig.Is(t, Nesting(text), want, "%q", text)
	}
}

func TestStringEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`"a"b`: `"a"`, `"\"a"b`: `"\"a"`, `'\'a`: `'\'`, `""a`: `""`, `''`: `''`, `"`: `"`, `"a\`: `"a\`, "'a\nb'": "'a",
		`"""a"b""c"""d`: `"""a"b""c"""`, `'''a''''b`: `'''a''''`, `'''a'''''b`: `'''a'''''`, `'''a''''''b`: `'''a'''''`,
		"'''a\n'": "'''a\n'", `""""""a`: `""""""`, `"""\""""a`: `"""\""""`,
	} {
		rig.Is(t, text[:StringEnd(text, 0)], want, "%s", text)
	}
}

// FuzzNesting: what the decoder makes of a text is no deeper than the text nests: the dots of a
// header, of a key in each bracket, and the brackets.
func FuzzNesting(f *testing.F) {
	f.Add("[a.b]\nc.d = [{e.f = '[['}] # [[\ng = \"\"\"\n[\\\"\"\"\"\"")
	f.Add("a = '''[''''\nb = [[[[1]]]]")
	f.Fuzz(func(t *testing.T, text string) {
		n := Nesting(text)
		if n > 16 {
			return
		}
		var values map[string]any
		if _, err := toml.Decode(text, &values); err != nil {
			return
		}
		rig.Is(t, depth(values) <= (n+2)*(n+1), true, "%q is %d deep, and nests %d", text, depth(values), n)
	})
}

// depth is how many arrays and tables are in each other.
func depth(value any) (deepest int) {
	switch value := value.(type) {
	case map[string]any:
		for _, v := range value {
			deepest = max(deepest, depth(v))
		}
	case []map[string]any:
		for _, v := range value {
			deepest = max(deepest, depth(v))
		}
	case []any:
		for _, v := range value {
			deepest = max(deepest, depth(v))
		}
	default:
		return 0
	}
	return deepest + 1
}
