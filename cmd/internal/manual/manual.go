// Package manual makes man pages of the grammar of a command line, one for each command, out
// of the same texts as its help.
package manual

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

// Page returns the page of a command in the language of man(7). version is that of the
// program.
func Page(app *kong.Application, command *kong.Node, version string) []byte {
	p := &page{app: app, node: command}
	name := fileName(app, command)
	fmt.Fprintf(&p.text, ".TH %s 1 \"\" %s\n", strings.ToUpper(quoted(name)), quoted("execagent "+version))
	p.text.WriteString(".ad l\n")
	p.section("NAME")
	fmt.Fprintf(&p.text, "%s \\- %s\n", escaped(name), escaped(strings.TrimSuffix(summary(app, command), ".")))
	p.section("SYNOPSIS")
	p.synopsis()
	p.description()
	p.commands()
	p.options()
	p.examples()
	p.seeAlso()
	return p.text.Bytes()
}

// Find returns the command that words name.
func Find(app *kong.Application, words []string) (*kong.Node, error) {
	node := app.Node
words:
	for i, word := range words {
		for _, child := range node.Children {
			if child.Name == word {
				node = child
				continue words
			}
		}
		return nil, fmt.Errorf("there is no command %s", strings.Join(words[:i+1], " "))
	}
	return node, nil
}

// Write writes the pages of all commands to a folder.
func Write(dir string, app *kong.Application, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var failed error
	var write func(node *kong.Node)
	write = func(node *kong.Node) {
		file := filepath.Join(dir, fileName(app, node)+".1")
		failed = errors.Join(failed, os.WriteFile(file, Page(app, node, version), 0o644))
		for _, child := range shown(node) {
			write(child)
		}
	}
	write(app.Node)
	return failed
}

// fileName is that of a command's page: agent-context-add.
func fileName(app *kong.Application, node *kong.Node) string {
	if node == app.Node {
		return app.Name
	}
	return app.Name + "-" + strings.ReplaceAll(path(app, node), " ", "-")
}

// path is a command with those above it.
func path(app *kong.Application, node *kong.Node) string {
	if node.Parent == nil || node.Parent == app.Node {
		return node.Name
	}
	return path(app, node.Parent) + " " + node.Name
}

// summary is what a command does, in a sentence.
func summary(app *kong.Application, node *kong.Node) string {
	text := node.Help
	if node == app.Node {
		text, _, _ = strings.Cut(text, ".")
	}
	return text
}

// shown are the commands below one that its help lists.
func shown(node *kong.Node) (children []*kong.Node) {
	for _, child := range node.Children {
		if !child.Hidden {
			children = append(children, child)
		}
	}
	return children
}

// page is a page as it is made.
type page struct {
	app  *kong.Application
	node *kong.Node
	text bytes.Buffer
}

func (p *page) section(title string) { fmt.Fprintf(&p.text, ".SH %s\n", quoted(title)) }

func (p *page) synopsis() {
	words := p.app.Name
	if p.node != p.app.Node {
		words += " " + path(p.app, p.node)
	}
	fmt.Fprintf(&p.text, ".B %s\n", escaped(words))
	rest := []string{`[\fIoptions\fR]`}
	if len(p.node.Children) > 0 {
		rest = append(rest, `\fIcommand\fR`)
	}
	for _, argument := range p.node.Positional {
		rest = append(rest, escaped(argument.Summary()))
	}
	fmt.Fprintln(&p.text, strings.Join(rest, " "))
}

// detail is the long text about the command.
func (p *page) detail() string {
	if p.node == p.app.Node {
		return p.node.Help
	}
	return p.node.Detail
}

const examples = "Examples:"

// description writes the long text up to the examples. What comes behind them, such as exit
// codes, is written too.
func (p *page) description() {
	p.section("DESCRIPTION")
	before, after := parts(p.detail())
	if p.node != p.app.Node {
		p.paragraph(p.node.Help)
	}
	for _, paragraph := range append(before, after...) {
		p.paragraph(paragraph)
	}
}

// parts returns the paragraphs before and after the examples of a text.
func parts(text string) (before, after []string) {
	var behind bool
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, examples):
			behind = true
		case behind && strings.HasPrefix(paragraph, " "):
		case behind:
			after = append(after, paragraph)
		default:
			before = append(before, paragraph)
		}
	}
	return before, after
}

func (p *page) paragraph(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	fmt.Fprintf(&p.text, ".PP\n%s\n", escaped(strings.TrimSpace(text)))
}

func (p *page) commands() {
	children := shown(p.node)
	if len(children) == 0 {
		return
	}
	p.section("COMMANDS")
	for _, child := range children {
		fmt.Fprintf(&p.text, ".TP\n.B %s\n%s\n", escaped(child.Name), escaped(child.Help))
	}
}

func (p *page) options() {
	p.section("OPTIONS")
	seen := map[string]bool{}
	var groups []string
	byGroup := map[string][]*kong.Flag{}
	for _, flags := range p.node.AllFlags(true) {
		for _, flag := range flags {
			title := ""
			if flag.Group != nil {
				title = strings.TrimSuffix(flag.Group.Title, ":")
			}
			if !seen[title] {
				seen[title] = true
				groups = append(groups, title)
			}
			byGroup[title] = append(byGroup[title], flag)
		}
	}
	for _, title := range groups {
		if title != "" {
			fmt.Fprintf(&p.text, ".SS %s\n", quoted(title))
		}
		for _, flag := range byGroup[title] {
			p.option(flag)
		}
	}
}

func (p *page) option(flag *kong.Flag) {
	names := `\fB` + escaped("--"+flag.Name) + `\fR`
	if flag.Short != 0 {
		names = `\fB` + escaped("-"+string(flag.Short)) + `\fR, ` + names
	}
	if !flag.IsBool() {
		names += `=\fI` + escaped(flag.FormatPlaceHolder()) + `\fR`
	}
	text := flag.Help
	if len(flag.Envs) > 0 {
		text += " (" + strings.Join(flag.Envs, ", ") + ")"
	}
	fmt.Fprintf(&p.text, ".TP\n%s\n%s\n", names, escaped(text))
}

// examples writes the lines of examples as they are.
func (p *page) examples() {
	_, text, found := strings.Cut(p.detail(), examples)
	if !found {
		return
	}
	p.section("EXAMPLES")
	fmt.Fprintln(&p.text, ".EX")
	for line := range strings.SplitSeq(strings.TrimLeft(text, "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			break
		}
		if line != "" {
			fmt.Fprintln(&p.text, escaped(strings.TrimSpace(line)))
		}
	}
	fmt.Fprintln(&p.text, ".EE")
}

func (p *page) seeAlso() {
	var pages []string
	if p.node.Parent != nil {
		pages = append(pages, fileName(p.app, p.node.Parent))
	}
	for _, child := range shown(p.node) {
		pages = append(pages, fileName(p.app, child))
	}
	if len(pages) == 0 {
		return
	}
	p.section("SEE ALSO")
	for i, name := range pages {
		end := ","
		if i == len(pages)-1 {
			end = ""
		}
		fmt.Fprintf(&p.text, ".BR %s (1)%s\n", escaped(name), end)
	}
}

// escaped is a text in the language of roff, in which it means itself.
func escaped(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\`", "^", `\(ha`, "~", `\(ti`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// quoted is one argument of a request.
func quoted(text string) string { return `"` + strings.ReplaceAll(escaped(text), `"`, `""`) + `"` }
