package contract

import (
	"fmt"
	"slices"
	"strings"
)

// pythonKeywords cannot be members of a class.
const pythonKeywords = " False None True and as assert async await break class continue def del elif else except finally for from global if " +
	"import in is lambda nonlocal not or pass raise return try while with yield "

// python is the module of the types in Python. A program that runs needs no types, so they cost it
// nothing: there each of them is dict.
func python(c *Contract) string {
	var b strings.Builder
	b.WriteString("# Generated from protocol/contract/contract.txt by `go generate ./protocol/contract`. Do not edit.\n" +
		"# docs/contract/README.md has all of it with descriptions.\n" +
		"from __future__ import annotations\n\n" +
		"from typing import TYPE_CHECKING, Any, Final, Literal\n\n" +
		fmt.Sprintf("VERSION: Final = %d\n\n# Methods.\n", c.Version))
	for _, m := range c.Methods {
		fmt.Fprintf(&b, "%s: Final = %q\n", words(m.Name, constant, constant, "_"), m.Name)
	}
	b.WriteString("\n# Flags in Capabilities.\n")
	for _, flag := range c.Flags() {
		fmt.Fprintf(&b, "HAS_%s: Final = %q\n", constant(flag.Name), flag.Name)
	}
	b.WriteString("\n# The flag that a server with the method has. Every server has the others.\nFLAG_OF: Final[dict[str, str]] = {\n")
	for _, m := range c.Methods {
		if m.Flag != "" {
			fmt.Fprintf(&b, "    %q: %q,\n", m.Name, m.Flag)
		}
	}
	b.WriteString("}\n\n# What a client does that has lost the connection before the answer.\n" +
		"REPEAT_OF: Final[dict[str, Literal[" + quoted(repeats) + "]]] = {\n")
	for _, m := range c.Methods {
		if m.Repeat != "" {
			fmt.Fprintf(&b, "    %q: %q,\n", m.Name, m.Repeat)
		}
	}
	b.WriteString("}\n\nif not TYPE_CHECKING:\n\n    def __getattr__(name: str) -> type:\n        if name.startswith(\"_\"):\n" +
		"            raise AttributeError(name)\n        return dict\n\n\nif TYPE_CHECKING:\n    from typing import NotRequired, TypeAlias, TypedDict\n")
	for _, n := range c.Types {
		b.WriteString("\n")
		comment(&b, "    # ", n.About)
		if n.Type != nil {
			fmt.Fprintf(&b, "    %s: TypeAlias = %s\n", n.Name, quotedIfLater(n.Type))
		} else {
			pythonRecord(&b, &n)
		}
	}
	return b.String()
}

// pythonRecord writes a record as a TypedDict. A member that is called as a keyword needs its other form,
// which is no annotation.
func pythonRecord(b *strings.Builder, n *Named) {
	open, indent, entry, end := "    class %s(TypedDict):\n", "        ", "%s: %s\n", ""
	keyword := slices.ContainsFunc(n.Members, func(m Member) bool { return strings.Contains(pythonKeywords, " "+m.Name+" ") })
	if keyword {
		open, indent, entry, end = "    %s = TypedDict(\n        %[1]q,\n        {\n", "            ", "%q: %s,\n", "        },\n    )\n"
	}
	fmt.Fprintf(b, open, n.Name)
	if len(n.Members) == 0 {
		b.WriteString("        pass\n")
	}
	for _, m := range n.Members {
		of := m.Type.python()
		if keyword {
			of = quotedIfLater(m.Type)
		}
		if m.Optional {
			of = "NotRequired[" + of + "]"
		}
		comment(b, indent+"# ", m.remarks())
		fmt.Fprintf(b, indent+entry, m.Name, of)
	}
	b.WriteString(end)
}

// quotedIfLater quotes a type that has names, because they may be declared later.
func quotedIfLater(t *Type) string {
	later := false
	t.walk(func(t *Type) { later = later || t.Kind == Ref })
	if later {
		return "'" + t.python() + "'"
	}
	return t.python()
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
	for _, arm := range t.Arms {
		if arm.Kind == Word {
			all = append(all, arm.Word)
		}
	}
	return all
}

// comment writes a text in lines of at most 100 characters, each with a prefix.
func comment(b *strings.Builder, prefix, text string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
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
