package hostenv

import (
	"strings"
	"testing"
)

// The encoder repeats the names of tables, so a rendered layer may be longer than
// its file. One bound holds for the rendered texts of all layers together.
func TestRenderLimit(t *testing.T) {
	t.Parallel()
	const want = "[t]\na = 1\n"
	tree := map[string]any{"t": map[string]any{"a": 1}}
	if got, err := renderTOML(tree, len(want)); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := renderTOML(tree, len(want)-1); err == nil {
		t.Errorf("one byte over the limit: got %q, want an error", got)
	}
	b := stackBuilder{left: 3 * len(want) / 2}
	f := &tomlFile{path: "/d/f", tree: tree}
	b.add("%s", f, [][]string{{"t"}})
	b.add("%s", f, [][]string{{"t"}})
	if b.err == nil || !strings.Contains(b.err.Error(), "/d/f") || len(b.stack.Layers) != 1 {
		t.Errorf("second layer is over the limit: got %v, %v, want an error", b.stack.Layers, b.err)
	}
}

// FuzzTOML checks that whatever can be read can be rendered, and that the
// rendered document means the same.
func FuzzTOML(f *testing.F) {
	for _, seed := range []string{
		"a = 1\n[t.u]\nb = \"x\"\n[[t.v]]\nc = [1, 'x', {d = 1979-05-27}]\n", "\"\" = inf\n'a b'.c = nan\n", "a = \"\"\"x\"\"\"\"\"\n#[[[\n",
		"a = 07:32:00.5\nb = 1979-05-27T07:32:00-07:00\nc = [[], [{}]]\n", "\ufeffa = '''\n[{'''", "a = [[[[{b.c.d = -0.0}]]]]\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tree, err := parseTOML([]byte(text))
		if err != nil {
			return
		}
		once, err := renderTOML(tree, maxRendered)
		if err != nil {
			t.Fatalf("rendering %q: %v", text, err)
		}
		tree, err = parseTOML([]byte(once))
		if err != nil {
			t.Fatalf("%q was rendered as %q, which does not parse: %v", text, once, err)
		}
		if twice, err := renderTOML(tree, maxRendered); err != nil || twice != once {
			t.Fatalf("%q was rendered as %q and then as %q, %v", text, once, twice, err)
		}
	})
}
