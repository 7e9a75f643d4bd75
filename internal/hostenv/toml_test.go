package hostenv

import (
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// The encoder repeats the names of tables, so a rendered layer may be longer than
// its file. One bound holds for the rendered texts of all layers together.
func TestRenderLimit(t *testing.T) {
	t.Parallel()
	const want = "[t]\na = 1\n"
	tree := map[string]any{"t": map[string]any{"a": 1}}
	rig.Is(t, rig.Value(renderTOML(tree, len(want))), want, "")
	rig.Is(t, rig.Err(renderTOML(tree, len(want)-1)) != nil, true, "one byte over the limit: an error")
	b := stackBuilder{left: 3 * len(want) / 2}
	f := &tomlFile{path: "/d/f", tree: tree}
	b.add("%s", f, [][]string{{"t"}})
	b.add("%s", f, [][]string{{"t"}})
	rig.Says(t, b.err, "/d/f", "the second layer is over the limit")
	rig.Is(t, len(b.stack.Layers), 1, "layers")
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
		rig.Must(t, err)
		tree, err = parseTOML([]byte(once))
		rig.Must(t, err)
		rig.Is(t, rig.Value(renderTOML(tree, maxRendered)), once, "%q, rendered again", text)
	})
}
