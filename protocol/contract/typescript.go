package contract

import (
	"fmt"
	"strings"
)

// typescript is the module of the types in TypeScript.
func typescript(c *Contract) string {
	var b strings.Builder
	b.WriteString("// Generated from protocol/contract/contract.txt by `go generate ./protocol/contract`. Do not edit.\n" +
		"// docs/contract/README.md has all of it with descriptions.\n\n" +
		fmt.Sprintf("export const VERSION = %d;\n\n", c.Version) +
		"/** The methods. */\nexport const Method = {\n")
	for _, m := range c.Methods {
		fmt.Fprintf(&b, "  %s: %q,\n", words(m.Name, same, title, ""), m.Name)
	}
	b.WriteString("} as const;\n\n/** The flag that a server with the method has. Every server has the others. */\n" +
		"export const FLAG_OF: { readonly [method: string]: keyof Capabilities } = {\n")
	for _, m := range c.Methods {
		if m.Flag != "" {
			fmt.Fprintf(&b, "  %q: %q,\n", m.Name, m.Flag)
		}
	}
	b.WriteString("};\n\nexport type Repeat = " + strings.ReplaceAll(quoted(repeats), ", ", " | ") + ";\n\n" +
		"/** What a client does that has lost the connection before the answer. */\nexport const REPEAT_OF: { readonly [method: string]: Repeat } = {\n")
	for _, m := range c.Methods {
		if m.Repeat != "" {
			fmt.Fprintf(&b, "  %q: %q,\n", m.Name, m.Repeat)
		}
	}
	b.WriteString("};\n")
	for _, kind := range []string{"client request", "client notification", "server request", "server notification"} {
		side, what, _ := strings.Cut(kind, " ")
		fmt.Fprintf(&b, "\n/** What a %s sends. */\nexport interface %s%ss {\n", side, title(side), title(what))
		for _, m := range c.Methods {
			switch {
			case m.kind() != kind:
			case m.Result != nil:
				fmt.Fprintf(&b, "  %q: { params: %s; result: %s };\n", m.Name, m.Params.typescript(), m.Result.typescript())
			default:
				fmt.Fprintf(&b, "  %q: %s;\n", m.Name, m.Params.typescript())
			}
		}
		b.WriteString("}\n")
	}
	for _, n := range c.Types {
		b.WriteString("\n")
		jsdoc(&b, "", n.About)
		switch {
		case n.Type != nil:
			fmt.Fprintf(&b, "export type %s = %s;\n", n.Name, n.Type.typescript())
		case len(n.Members) == 0:
			fmt.Fprintf(&b, "export type %s = Record<string, never>;\n", n.Name)
		default:
			fmt.Fprintf(&b, "export interface %s {\n", n.Name)
			for _, m := range n.Members {
				jsdoc(&b, "  ", m.remarks())
				optional := ""
				if m.Optional {
					optional = "?"
				}
				fmt.Fprintf(&b, "  %s%s: %s;\n", m.Name, optional, m.Type.typescript())
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// jsdoc writes a comment of one or more lines.
func jsdoc(b *strings.Builder, indent, text string) {
	text = strings.ReplaceAll(text, "*/", `*\/`)
	switch {
	case text == "":
	case len(indent+text) <= 90:
		b.WriteString(indent + "/** " + text + " */\n")
	default:
		b.WriteString(indent + "/**\n")
		comment(b, indent+" * ", text)
		b.WriteString(indent + " */\n")
	}
}

// typescript is a type in TypeScript. Integers beyond 2^53 lose precision there.
func (t *Type) typescript() string {
	switch t.Kind {
	case Integer:
		return "number"
	case Boolean, Null:
		return string(t.Kind)
	case Any:
		return "unknown"
	case Word:
		return fmt.Sprintf("%q", t.Word)
	case List:
		if elem := t.Elem.typescript(); t.Elem.Kind != Union {
			return elem + "[]"
		}
		return "(" + t.Elem.typescript() + ")[]"
	case Map:
		return "{ [key: string]: " + t.Elem.typescript() + " }"
	case Ref:
		return t.Name
	case Union:
		var all []string
		for _, arm := range t.Arms {
			text := arm.typescript()
			if arm.Kind == String && t.open() {
				text = "(string & {})" // so that editors offer the words
			}
			all = append(all, text)
		}
		return strings.Join(all, " | ")
	}
	return "string"
}
