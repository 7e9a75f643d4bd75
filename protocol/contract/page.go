package contract

import (
	"fmt"
	"strconv"
	"strings"
)

// intro is the beginning of the page.
const intro = `# The contract

What a client and an agent say to each other: every method, every record, every member. This page is made of
[contract.txt](../../protocol/contract/contract.txt) by ` + "`go generate ./protocol/contract`" + `, so do not edit it. [docs/protocol](../protocol/README.md)
says how to begin, and what the methods do in detail.

| file | what it is |
|---|---|
| [schema.json](schema.json) | JSON Schema 2020-12, one definition for each record and type. ` + "`x-method`, `x-direction`, `x-capability`, `x-retry`, `x-maxBytes`" + ` are ours |
| [meta.json](meta.json) | the table of methods, with params, result, flag and retry |
| [openrpc.json](openrpc.json) | OpenRPC, for its viewers. What a server sends is in ` + "`x-serverMethods`" + `, because OpenRPC has no place for it |
| ` + "`agent schema --format NAME`" + ` | prints these and the types for Python and TypeScript, of the version of the agent |

**Messages.** One JSON object each, without the member ` + "`jsonrpc`" + `: [RequestMessage](#requestmessage), [NotificationMessage](#notificationmessage),
[ResultMessage](#resultmessage), [ErrorMessage](#errormessage). Both sides ask, so the ids of each side are its own.

**Values.** An *integer* is written without fraction and exponent; without bounds it is 0 to 2^64-1, a *signed integer* has 64 bits. Lengths of a
*string* are bytes of UTF-8. *base64* has the standard alphabet and padding. A *path* is a ` + "`file:`" + ` URI such as ` + "`file:///a%20b`" + `. No object has a name
twice. Members that a record does not have are ignored, unless it is strict.

**Flags.** Only servers with a flag in [Capabilities](#capabilities) have the method or the member that names it.

**Repeat** says what the sender of a request does that has lost the connection before the answer. *safe*: it sends the request again. *same*: it sends it again
with the same members, and it is done once. *never*: it does not repeat it, because it may have been done. *reopen*: the connection has
taken the handle or the watch with it, so it opens a new one.
`

// page is the page for readers.
func page(c *Contract) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, s := range c.Sections {
		fmt.Fprintf(&b, "\n- [%s](#%s):", s.Title, anchor(s.Title))
		for _, name := range s.Names {
			if m := c.Method(name); m != nil {
				fmt.Fprintf(&b, " [%s](#%s)", name, anchor(m.heading()))
			}
		}
	}
	b.WriteString("\n")
	for _, s := range c.Sections {
		fmt.Fprintf(&b, "\n## %s\n", s.Title)
		for _, name := range s.Names {
			if m := c.Method(name); m != nil {
				m.page(&b)
			} else {
				c.Named(name).page(&b)
			}
		}
	}
	return b.String()
}

// anchor is the anchor of a heading.
func anchor(heading string) string {
	return strings.ToLower(strings.NewReplacer(" ", "-", "/", "").Replace(heading))
}

// heading is that of a method. Without its kind it would have the anchor of a record.
func (m *Method) heading() string { return title(m.kind()) + " " + m.Name }

func (m *Method) page(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\nParams: %s.", m.heading(), m.About, m.Params.prose())
	if m.Result != nil {
		fmt.Fprintf(b, " Result: %s. Repeat: *%s*.", m.Result.prose(), m.Repeat)
	}
	if m.Flag != "" {
		fmt.Fprintf(b, " Flag: `%s`.", m.Flag)
	}
	b.WriteString("\n\n```json\n")
	if m.Result == nil {
		fmt.Fprintf(b, "{\"method\":%q,\"params\":%s}\n", m.Name, m.ParamsExample)
	} else {
		fmt.Fprintf(b, "{\"id\":1,\"method\":%q,\"params\":%s}\n{\"id\":1,\"result\":%s}\n", m.Name, m.ParamsExample, m.ResultExample)
	}
	b.WriteString("```\n")
	if len(m.Errors) > 0 {
		b.WriteString("\n| error | when |\n|---|---|\n")
	}
	for _, e := range m.Errors {
		fmt.Fprintf(b, "| %d | %s |\n", e.Code, e.When)
	}
}

func (n *Named) page(b *strings.Builder) {
	fmt.Fprintf(b, "\n#### %s\n", n.Name)
	say := func(text string) {
		if text != "" {
			b.WriteString("\n" + text + "\n")
		}
	}
	say(n.About)
	switch {
	case n.Type != nil:
		say(title(n.Type.prose()) + ".")
	case n.Strict:
		say("Strict: members that it does not have are refused.")
	case len(n.Members) == 0:
		say("It has no members.")
	}
	if len(n.Members) > 0 {
		b.WriteString("\n| member | type | |\n|---|---|---|\n")
	}
	for _, m := range n.Members {
		name := "`" + m.Name + "`"
		if m.Optional {
			name += ", optional"
		}
		about := m.About
		if m.Default != nil {
			about += " Absent: `" + string(m.Default) + "`."
		}
		if m.Flag != "" {
			about += " Flag: `" + m.Flag + "`."
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, m.Type.prose(), strings.ReplaceAll(strings.TrimSpace(about), "|", `\|`))
	}
	for _, r := range n.Rules {
		if r.Both {
			say(fmt.Sprintf("`%s` and `%s` are not given together.", r.Member, r.With))
		} else {
			say(fmt.Sprintf("`%s` has the member `%s`, if it is given.", r.Member, r.With))
		}
	}
}

// prose is a type in words.
func (t *Type) prose() string {
	switch t.Kind {
	case Word:
		return "`" + t.Word + "`"
	case Ref:
		return fmt.Sprintf("[%s](#%s)", t.Name, anchor(t.Name))
	case Integer:
		switch {
		case t.Signed:
			return "signed integer"
		case t.Least == 0 && t.Most == NoLimit:
			return "integer"
		case t.Most == NoLimit:
			return "integer from " + number(t.Least)
		}
		return "integer " + number(t.Least) + " to " + number(t.Most)
	case List:
		return "list of " + t.of() + t.size(" elements")
	case Map:
		text := "map of names"
		if t.Key.Most != NoLimit {
			text += " of at most " + number(t.Key.Most) + " bytes"
		}
		return text + " to " + t.of() + t.size(" members")
	case Union:
		var all []string
		for _, arm := range t.Arms {
			if arm.Kind == String && t.open() {
				all = append(all, "another word")
			} else {
				all = append(all, arm.prose())
			}
		}
		last := len(all) - 1
		return strings.Join(all[:last], ", ") + " or " + all[last]
	case Any:
		return "any value"
	}
	text := string(t.Kind) + t.size(" bytes")
	if t.Pattern != "" {
		text += ", such as `" + t.Example + "`"
	}
	return text
}

// of is the type of the elements, in words.
func (t *Type) of() string {
	text := t.Elem.prose()
	if t.Elem.Kind == Union || strings.Contains(text, ",") {
		return "(" + text + ")"
	}
	return text
}

// size tells the bounds of a length.
func (t *Type) size(unit string) string {
	switch {
	case t.Least == 0 && t.Most == NoLimit:
		return ""
	case t.Most == NoLimit: // at least 1
		return ", not empty"
	case t.Least == 0:
		return ", at most " + number(t.Most) + unit
	}
	return ", " + number(t.Least) + " to " + number(t.Most) + unit
}

// number writes a number with commas.
func number(n uint64) string {
	text := strconv.FormatUint(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
