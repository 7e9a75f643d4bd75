package cli

import (
	"fmt"
	"go/doc/comment"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// helped has the text that the help of a command shows below the line from the grammar. An indented
// line is an example, and is not wrapped.
type helped interface{ Help() string }

// Help writes the help of the command, as wide as COLUMNS or the terminal w.
func (c *Command) Help(w io.Writer) error {
	p := page{width: columns(w)}
	root := c.above == nil
	p.line("Usage: " + c.usage())
	if root {
		p.line("")
		for line := range strings.SplitSeq(c.program.Description, "\n") {
			p.line(line)
		}
	} else {
		p.text(c.Summary)
	}
	flags := c.New()
	if h, ok := flags.(helped); ok {
		p.text(h.Help())
	}
	var fields Fields
	if !root {
		fields = c.Of(flags)
	}
	p.arguments(fields)
	p.commands(c.leaves())
	p.flags(c.program, fields)
	if root {
		p.line("")
		p.line(fmt.Sprintf(`Run "%s <command> --help" for more information on a command.`, c.Name))
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

// columns returns the width of a help that is written to w.
func columns(w io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil {
		return n
	}
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}

// usage returns the first line of the help.
func (c *Command) usage() string {
	words := []string{c.program.Name}
	if c.above != nil {
		words = append(words, c.title())
	}
	var fields Fields
	if c.above != nil {
		fields = c.Of(c.New())
	}
	flags := c.program.Own != nil
	optional := 0
	var arguments []string
	for _, f := range fields {
		switch {
		case f.Arguments && f.Optional:
			optional++
			arguments = append(arguments, strings.TrimSuffix(f.summary(), "]"))
		case f.Arguments:
			arguments = append(arguments, f.summary())
		case f.Required:
			words = append(words, f.summary())
		default:
			flags = true
		}
	}
	switch {
	case len(arguments) > 0:
		words = append(words, strings.Join(arguments, " ")+strings.Repeat("]", optional))
	case len(c.Below()) > 0:
		words = append(words, "<command>")
	}
	if flags {
		words = append(words, "[flags]")
	}
	return strings.Join(words, " ")
}

// title returns the command with the commands above it, each with its aliases.
func (c *Command) title() string {
	title := c.Name
	if len(c.Aliases) > 0 {
		title += " (" + strings.Join(c.Aliases, ",") + ")"
	}
	if c.above != nil && c.above.above != nil {
		title = c.above.title() + " " + title
	}
	return title
}

// name returns the field in the form of errors: --size, or <path> ...
func (f *Field) name() string {
	if !f.Arguments {
		return "--" + f.Name
	}
	name := "<" + f.Name + ">"
	if f.list() {
		name += " ..."
	}
	if f.Optional {
		name = "[" + name + "]"
	}
	return name
}

// summary returns the name with the value that a flag takes: --size=N.
func (f *Field) summary() string {
	if f.Arguments || f.Boolean() {
		return f.name()
	}
	tail := ""
	if f.splits && !f.Path {
		tail = ",..."
	}
	value := f.tag.Get("placeholder")
	switch {
	case value != "":
	case f.Default != "":
		value = f.Default
	default:
		value = strings.ToUpper(f.Name)
	}
	return f.name() + "=" + value + tail
}

// Help returns the text about the field, without its variables.
func (f *Field) Help() string {
	text := strings.ReplaceAll(f.tag.Get("help"), "${default}", f.Default)
	if f.program != nil {
		text = f.program.expand(text)
	}
	return text
}

// described returns the text about the field, with its variables.
func (f *Field) described() string {
	text := f.Help()
	if len(f.Env) == 0 {
		return text
	}
	text, point := strings.CutSuffix(text, ".")
	text += " ($" + strings.Join(f.Env, ", $") + ")"
	if point {
		text += "."
	}
	return text
}

// page is a help that is being written.
type page struct {
	b     strings.Builder
	width int
}

func (p *page) line(text string) {
	p.b.WriteString(strings.TrimRight(text, " "))
	p.b.WriteByte('\n')
}

// filled returns the lines of a text, wrapped at a width. Indented text is not wrapped.
func filled(text, indent string, width int) []string {
	var parser comment.Parser
	printer := comment.Printer{TextCodePrefix: indent, TextWidth: width}
	return strings.Split(strings.TrimRight(string(printer.Text(parser.Parse(text))), "\n"), "\n")
}

// text writes a text, after an empty line.
func (p *page) text(text string) {
	p.line("")
	for _, line := range filled(strings.TrimSpace(text), "    ", p.width) {
		p.line(line)
	}
}

// row is a row of a table. Its right text may need several lines.
type row struct{ left, right string }

// table writes two columns.
func (p *page) table(rows []row) {
	const indent, between = 2, 4
	width := p.width - indent
	most := max(30, 375*width/1000)
	left := 0
	for _, r := range rows {
		if n := len(r.left); n < most {
			left = max(left, n)
		}
	}
	for _, r := range rows {
		lines := filled(r.right, "  ", width-left-between)
		first := r.left
		if len(r.left) < most {
			first, lines = fmt.Sprintf("%-*s%s", left+between, r.left, lines[0]), lines[1:]
		}
		p.line("  " + first)
		for _, line := range lines {
			p.line(strings.Repeat(" ", indent+left+between) + line)
		}
	}
}

func (p *page) arguments(fields Fields) {
	var rows []row
	for _, f := range fields {
		if f.Arguments {
			rows = append(rows, row{f.summary(), f.described()})
		}
	}
	p.section("Arguments:", rows)
}

func (p *page) commands(commands []*Command) {
	var rows []row
	for _, c := range commands {
		rows = append(rows, row{c.title(), c.Summary})
	}
	p.section("Commands:", rows)
}

// section writes a table with a title, if it has rows.
func (p *page) section(title string, rows []row) {
	if len(rows) > 0 {
		p.text(title)
		p.table(rows)
	}
}

// flags writes the flags of a command in their sections, after the flags of the program itself.
func (p *page) flags(program *App, fields Fields) {
	p.section("Flags:", rows(program.own(), fields.in("")))
	var seen []string
	for _, f := range fields {
		key := f.Section()
		if key == "" || f.Hidden || slices.Contains(seen, key) {
			continue
		}
		seen = append(seen, key)
		i := slices.IndexFunc(program.Sections, func(s Section) bool { return s.Key == key })
		p.section(program.Sections[i].Title, rows(fields.in(key)))
	}
}

// Section returns the key of the [Section] of the help to which the flag belongs.
func (f *Field) Section() string { return f.tag.Get("group") }

// in returns the flags of a section that the help lists.
func (fs Fields) in(key string) Fields {
	return slices.DeleteFunc(slices.Clone(fs), func(f Field) bool { return f.Arguments || f.Hidden || f.Section() != key })
}

// rows returns the rows of flags, with an empty row between the parts.
func rows(parts ...Fields) (all []row) {
	short := slices.ContainsFunc(slices.Concat(parts...), func(f Field) bool { return f.Short != "" })
	for i, part := range parts {
		if i > 0 && len(part) > 0 {
			all = append(all, row{})
		}
		for _, f := range part {
			before := ""
			switch {
			case f.Short != "":
				before = "-" + f.Short + ", "
			case short:
				before = "    "
			}
			all = append(all, row{before + f.summary(), f.described()})
		}
	}
	return all
}
