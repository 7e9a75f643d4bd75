package contract

import (
	"fmt"
	"strings"
)

// pythonKeywords cannot be members of a class.
var pythonKeywords = map[string]bool{"from": true, "import": true, "class": true, "global": true, "in": true, "is": true, "not": true, "with": true}

// python is the module of the types in Python.
func python(c *Contract) string {
	var b strings.Builder
	b.WriteString("# Generated from protocol/contract/contract.txt by `go generate ./protocol/contract`. Do not edit.\n" +
		"# docs/contract/README.md has all of it with descriptions.\n" +
		"from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict\n\n" +
		fmt.Sprintf("VERSION: Final = %d\n\n# Methods.\n", c.Version))
	for _, m := range c.Methods {
		fmt.Fprintf(&b, "%s: Final = %q\n", pythonConstant(m.Name), m.Name)
	}
	b.WriteString("\n# Flags in Capabilities.\n")
	for _, flag := range c.Flags() {
		fmt.Fprintf(&b, "%s: Final = %q\n", "HAS_"+constant(flag.Name), flag.Name)
	}
	b.WriteString("\n# The flag that a server with the method has. Every server has the others.\nFLAG_OF: Final[dict[str, str]] = {\n")
	for _, m := range c.Methods {
		if m.Flag != "" {
			fmt.Fprintf(&b, "    %q: %q,\n", m.Name, m.Flag)
		}
	}
	b.WriteString("}\n\n# What a client does that has lost the connection before the answer.\n" +
		"Repeat: TypeAlias = Literal[" + quoted(repeats) + "]\nREPEAT_OF: Final[dict[str, Repeat]] = {\n")
	for _, m := range c.Methods {
		if m.Repeat != "" {
			fmt.Fprintf(&b, "    %q: %q,\n", m.Name, m.Repeat)
		}
	}
	b.WriteString("}\n")
	for _, n := range c.Types {
		b.WriteString("\n\n")
		comment(&b, "# ", n.About)
		if n.Type != nil {
			fmt.Fprintf(&b, "%s: TypeAlias = %s\n", n.Name, quotedIfLater(n.Type, n.Type.python()))
			continue
		}
		pythonRecord(&b, &n)
	}
	return b.String()
}

// pythonRecord writes a record as a TypedDict. A member that is called as a keyword needs its other form.
func pythonRecord(b *strings.Builder, n *Named) {
	keyword := false
	for _, m := range n.Members {
		keyword = keyword || pythonKeywords[m.Name]
	}
	open, entry, end := "class "+n.Name+"(TypedDict):\n", "    %s: %s\n", ""
	if keyword {
		open, entry, end = n.Name+" = TypedDict(\n    "+fmt.Sprintf("%q", n.Name)+",\n    {\n", "        \"%s\": %s,\n", "    },\n)\n"
	}
	b.WriteString(open)
	if len(n.Members) == 0 {
		b.WriteString("    pass\n")
	}
	for _, m := range n.Members {
		comment(b, entry[:len(entry)-len(strings.TrimLeft(entry, " "))]+"# ", m.remarks())
		of := quotedIfLater(m.Type, m.Type.python())
		if m.Optional {
			of = "NotRequired[" + of + "]"
		}
		fmt.Fprintf(b, entry, m.Name, of)
	}
	b.WriteString(end)
}

// quotedIfLater quotes a type that has names, because they may be declared later.
func quotedIfLater(t *Type, text string) string {
	later := false
	t.walk(func(t *Type) { later = later || t.Kind == Ref })
	if !later {
		return text
	}
	return "'" + text + "'"
}

// python is a type in Python.
func (t *Type) python() string {
	switch t.Kind {
	case Integer:
		return "int"
	case Boolean:
		return "bool"
	case Null:
		return "None"
	case Any:
		return "Any"
	case Word:
		return fmt.Sprintf("Literal[%q]", t.Word)
	case List:
		return "list[" + t.Elem.python() + "]"
	case Map:
		return "dict[str, " + t.Elem.python() + "]"
	case Ref:
		return t.Name
	case Union:
		var words, all []string
		for _, arm := range t.Arms {
			if arm.Kind != Word {
				all = append(all, arm.python())
			} else if !t.open() {
				words = append(words, arm.Word)
			}
		}
		if words != nil {
			all = append([]string{"Literal[" + quoted(words) + "]"}, all...)
		}
		return strings.Join(all, " | ")
	}
	return "str"
}

// remarks are what a comment says about a member.
func (m *Member) remarks() string {
	text := m.About
	add := func(more string) { text = strings.TrimSpace(text + " " + more) }
	if m.Type.open() {
		add("Known: " + strings.Join(m.Type.words(), ", ") + ".")
	}
	if m.Default != nil {
		add("Absent: " + string(m.Default) + ".")
	}
	if m.Flag != "" {
		add("Only with " + m.Flag + ".")
	}
	return text
}

// words are the words of a union.
func (t *Type) words() (all []string) {
	for _, arm := range t.arms() {
		if arm.Kind == Word {
			all = append(all, arm.Word)
		}
	}
	return all
}

// comment writes a text in lines of at most 100 characters, each with a prefix.
func comment(b *strings.Builder, prefix, text string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(prefix+line)+1+len(word) > 100 {
			b.WriteString(prefix + line + "\n")
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		b.WriteString(prefix + line + "\n")
	}
}

func quoted(list []string) string {
	return `"` + strings.Join(list, `", "`) + `"`
}

// pythonConstant is the constant of a method: PROCESS_START for process/start.
func pythonConstant(method string) string { return words(method, constant, constant, "_") }

// constant is a camel-case name in capitals.
func constant(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && 'A' <= r && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}
