package hostenv

import "testing"

// FuzzTOML checks that whatever can be read can be rendered, and that the rendered document means the same.
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
		once, err := renderTOML(tree)
		if err != nil {
			t.Fatalf("rendering %q: %v", text, err)
		}
		tree, err = parseTOML([]byte(once))
		if err != nil {
			t.Fatalf("%q was rendered as %q, which does not parse: %v", text, once, err)
		}
		if twice, err := renderTOML(tree); err != nil || twice != once {
			t.Fatalf("%q was rendered as %q and then as %q, %v", text, once, twice, err)
		}
	})
}
