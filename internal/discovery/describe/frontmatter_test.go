package describe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       header
		refused    bool
	}{
		{name: "plain", text: "---\nname: a\ndescription: d\n---\nBODY", want: header{name: "a", description: "d"}},
		{name: "marks with blanks, CRLF", text: "  --- \r\nname: a\r\ndescription: d\r\n ---\r\n", want: header{name: "a", description: "d"}},
		{name: "end of file closes", text: "---\ndescription: d\n---", want: header{description: "d"}},
		{name: "scalars", text: "---\nname: 5\ndescription: true\n---", want: header{name: "5", description: "true"}},
		{name: "null name", text: "---\nname:\ndescription: d\n---", want: header{description: "d"}},
		{name: "folded", text: "---\nname: ' a\tb '\ndescription: |\n  one\n  two\n---", want: header{name: "a b", description: "one two"}},
		{name: "short", text: "---\ndescription: d\nmetadata:\n  short-description: s\n---", want: header{description: "d", shortDescription: "s"}},
		{name: "colon", text: "---\ndescription: Build for AWS: ECS # comment\n---", want: header{description: "Build for AWS: ECS"}},
		{name: "bracket", text: "---\ndescription: [unclosed\n---", want: header{description: "[unclosed"}},
		{name: "at", text: "---\ndescription: @me it's\n---", want: header{description: "@me it's"}},
		{name: "repair leaves block scalars", text: "---\nname: x: y\ndescription: >\n  a: b: c\n---", want: header{name: "x: y", description: "a: b: c"}},
		{name: "repair leaves flow mappings", text: "---\ndescription: a: b\nmetadata: {short-description: s}\n---",
			want: header{description: "a: b", shortDescription: "s"}},
		{name: "anchor", text: "---\ndescription: &a d\n---", want: header{description: "d"}},

		{name: "none", text: "BODY", refused: true},
		{name: "empty", text: "---\n---\n", refused: true},
		{name: "blank line first", text: "\n---\ndescription: d\n---", refused: true},
		{name: "BOM", text: "\ufeff---\ndescription: d\n---", refused: true},
		{name: "not closed", text: "---\ndescription: d\n", refused: true},
		{name: "no description", text: "---\nname: a\n---", refused: true},
		{name: "empty description", text: "---\ndescription: ' '\n---", refused: true},
		{name: "twice", text: "---\nname: a\nname: b\ndescription: d\n---", refused: true},
		{name: "list", text: "---\nname: [a]\ndescription: d\n---", refused: true},
		{name: "metadata of another kind", text: "---\ndescription: d\nmetadata: 5\n---", refused: true},
		{name: "metadata null", text: "---\ndescription: d\nmetadata: null\n---", refused: true},
		{name: "tab", text: "---\ndescription: d\nmetadata:\n\tshort-description: s\n---", refused: true},
		{name: "percent", text: "---\ndescription: %x\n---", refused: true},
		{name: "mapping in a plain scalar", text: "---\ndescription: a\n  b: c\n---", refused: true},
		{name: "alias", text: "---\nname: &a x\ndescription: *a\n---", refused: true},
		{name: "sequence on top", text: "---\n- a\n---", refused: true},
		{name: "long name", text: "---\nname: " + strings.Repeat("é", maxName+1) + "\ndescription: d\n---", refused: true},
		{name: "large", text: "---\n#" + strings.Repeat("x", maxFrontMatter) + "\ndescription: d\n---", refused: true},
		{name: "nested", text: "---\ndescription: d\nx: " + strings.Repeat("[", maxYAMLDepth) + strings.Repeat("]", maxYAMLDepth) + "\n---", refused: true},
		{name: "nested blocks", text: "---\ndescription: d\nx:\n  " + strings.Repeat("- ", maxYAMLDepth) + "\n---", refused: true},
		{name: "nested beyond the parser is a text", text: "---\ndescription: d\nx: " + strings.Repeat("{a: ", 15_000) + "\n---", want: header{description: "d"}},
		{name: "long description", text: "---\ndescription: " + strings.Repeat("x", maxFrontMatter-20) + "\n---", want: header{description: strings.Repeat("x", maxFrontMatter-20)}},
		{name: "as much to repair as may be", text: "---\ndescription: a: b\n" + unclosed(maxTried) + "---", want: header{description: "a: b"}},
		{name: "more to repair", text: "---\ndescription: a: b\n" + unclosed(maxTried+1) + "---", refused: true},
		{name: "bomb", text: "---\ndescription: d\na: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n---", refused: true},
	} {
		got, err := parseHeader(tt.text)
		rig.Is(t, err != nil, tt.refused, "%s: %v: it is refused", tt.name, err)
		rig.Is(t, got, tt.want, "%s", tt.name)
	}
	rig.Check(t, rig.Err(parseHeader("---\nname: "+strings.Repeat("é", maxName)+"\ndescription: d\n---")))
}

// unclosed are n members with values that need quotes.
func unclosed(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: [\n", i)
	}
	return b.String()
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	m := parseMetadata("interface: {display_name: X, other: [1]}\ndependencies:\n  tools:\n" +
		"    - {type: mcp, value: ' g  h ', oauth: {callback_port: 8080}, more: 1}\n    - {type: mcp}\n" +
		"    - {type: mcp, value: " + strings.Repeat("x", 2000) + "}\n" +
		"policy: {allow_implicit_invocation: false, products: [codex, ATLAS]}")
	rig.Is(t, len(m.Tools), 1, "tools")
	rig.Is(t, fmt.Sprint(m.Tools[0].Type, " ", m.Tools[0].Value, *m.Tools[0].OAuthCallbackPort), "mcp g h8080", "the tool")
	rig.Is(t, fmt.Sprint(*m.Policy.AllowImplicitInvocation, m.Policy.Products), "false [codex atlas]", "policy")
	for _, wrong := range []string{
		"{oops", "", "5", "interface: 5", "policy: 5", "policy: {products: [bogus]}", "policy: {products: codex}",
		"policy: {allow_implicit_invocation: maybe}", "dependencies: []", "dependencies: {tools: {}}",
		"dependencies: {tools: [5]}", "dependencies: {tools: [{type: []}]}", "dependencies: {tools: [{oauth: 5}]}",
		"dependencies: {tools: [{oauth: {callback_port: 70000}}]}", "policy: {}\n#" + strings.Repeat("x", maxMetadata), "a: &a x\nb: *a\npolicy: {}",
	} {
		m := parseMetadata(wrong)
		rig.Is(t, m.Tools == nil && m.Policy == nil, true, "%q: %+v is nothing", wrong, m)
	}
}

// FuzzHeader: whatever is at the head of a file, what comes of it is within the bounds, and
// nothing behind the closing mark counts.
func FuzzHeader(f *testing.F) {
	for _, seed := range []string{
		"---\nname: a\ndescription: d\n---\nBODY", "---\ndescription: Build for AWS: ECS # c\n---\n", "---\ndescription: [unclosed\n---",
		"---\nname: &a x\ndescription: *a\n---", "---\ndescription: |\n  a: b\nmetadata: {short-description: s}\n---", "---\n? [a, b]\n: c\n---",
		"---\ndescription: @x\r\nk: 'it''s'\r\n---", "---\n- - - -\n---", "---\n<<: {description: d}\n---", "---\n!!binary description: !!x d\n---",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHeader(text)
		parseMetadata(text)
		if err != nil {
			rig.Is(t, h, header{}, "beside %v", err)
			return
		}
		block, err := frontMatter(text)
		rig.Must(t, err)
		rig.Is(t, len(block) <= maxFrontMatter && h.description != "" && len([]rune(h.name)) <= maxName, true, "%+v of %d bytes", h, len(block))
		rig.Is(t, fold(h.name), h.name, "the name, folded")
		rig.Is(t, rig.Value(parseHeader("---\n"+block+"\n---\nsomething else")), h, "read again")
	})
}
