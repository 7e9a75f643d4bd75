// Package cli reads the command line of a program into structs, one for each command. The tags of the
// fields name flags, arguments and variables of the environment. Files can set the same options. Help,
// completion and hints about mistyped words come from the same tags.
//
// An [App] has a struct with a field for each command, and each command a struct of its own:
//
//	type commandLine struct {
//		Serve serveFlags `cmd:"" default:"withargs" help:"Serve. This is the default command."`
//		Keys  struct {
//			List listFlags `cmd:"" aliases:"ls" help:"List keys."`
//		} `cmd:"" help:"Keys."`
//	}
//
//	type serveFlags struct {
//		Size int    `short:"s" default:"3" env:"PROGRAM_SIZE" placeholder:"N" help:"How much."`
//		Mode string `default:"" enum:",none,full" help:"Which."`
//		Dirs []string `arg:"" optional:"" type:"path" name:"dir" help:"Where."`
//	}
//
// [App.Read] reads a line. [ReadFiles] reads the files, and [Layers.Merge] decides which of them
// counts. Only the struct of the command that a line names is examined, so a program starts as fast
// with a hundred commands as with one.
package cli

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// App is a program with commands.
type App struct {
	Name        string
	Description string // text of the help, printed unchanged
	Commands    any    // a struct with a field for each command
	Own         any    // a struct with the flags of the program itself: every command has these flags, and they take effect at once
	Sections    []Section
	Habits      Habits
	// Vars are the values of ${NAME} in defaults and help.
	Vars map[string]string
	// Hide reports whether the help of a command leaves a flag out.
	Hide func(command string, f *Field) bool

	once sync.Once
	root *Command
}

// Section is a part of the flags in a help: the flags with the tag group:"KEY".
type Section struct{ Key, Title string }

// Command is a command of a program, or the program itself, which has commands below it.
type Command struct {
	Name, Summary string
	Path          string // with the commands above it: "keys list"; "" for the program
	Aliases       []string
	Hidden        bool
	Default       bool // its flags may come without its name

	program *App
	above   *Command // nil for the program
	flags   reflect.Type
	once    sync.Once
	below   []*Command
}

// Root returns the program itself.
func (p *App) Root() *Command {
	p.once.Do(func() { p.root = &Command{Name: p.Name, program: p, flags: reflect.TypeOf(p.Commands)} })
	return p.root
}

// Find returns a command by its path, or nil if there is none.
func (p *App) Find(path string) *Command {
	c := p.Root()
	for word := range strings.SplitSeq(path, " ") {
		i := slices.IndexFunc(c.Below(), func(child *Command) bool { return child.Name == word })
		if i < 0 {
			return nil
		}
		c = c.below[i]
	}
	return c
}

// Leaves returns the commands of the program that have no commands below them, except hidden
// commands.
func (p *App) Leaves() (all []*Command) { return p.Root().leaves() }

func (c *Command) leaves() (all []*Command) {
	for _, child := range c.Shown() {
		if len(child.Below()) > 0 {
			all = append(all, child.leaves()...)
		} else {
			all = append(all, child)
		}
	}
	return all
}

// Below returns the commands below this one.
func (c *Command) Below() []*Command {
	c.once.Do(c.list)
	return c.below
}

// list sets below.
func (c *Command) list() {
	for field := range c.flags.Fields() {
		tag := plainTag(field.Tag)
		if _, ok := tag.Lookup("cmd"); !ok {
			continue
		}
		child := &Command{Name: dashed(field.Name), Summary: field.Tag.Get("help"), program: c.program, above: c, flags: field.Type}
		child.Path = strings.TrimPrefix(c.Path+" "+child.Name, " ")
		child.Aliases = words(tag.Get("aliases"))
		_, child.Hidden = tag.Lookup("hidden")
		child.Default = tag.Get("default") == "withargs"
		c.below = append(c.below, child)
	}
}

// Shown returns the commands below this one that its help lists.
func (c *Command) Shown() []*Command {
	return slices.DeleteFunc(slices.Clone(c.Below()), func(child *Command) bool { return child.Hidden })
}

// child returns the command below this one that a word names, or nil if there is none.
func (c *Command) child(word string) *Command {
	for _, child := range c.Below() {
		if child.Name == word || slices.Contains(child.Aliases, word) {
			return child
		}
	}
	return nil
}

// fallback returns the default command below this one, whose flags may come without its name, or
// nil.
func (c *Command) fallback() *Command {
	for _, child := range c.Below() {
		if child.Default {
			return child
		}
	}
	return nil
}

// New returns a pointer to a struct for the flags of the command.
func (c *Command) New() any { return reflect.New(c.flags).Interface() }

// Of lists the fields of the flags of this command.
func (c *Command) Of(flags any) Fields {
	fields := Of(flags)
	for i := range fields {
		f := &fields[i]
		f.Default = c.program.expand(f.Default)
		f.program = c.program
		f.Hidden = f.Hidden || c.program.Hide != nil && c.program.Hide(c.Path, f)
	}
	return fields
}

// expand replaces variables in a text by their values.
func (p *App) expand(text string) string {
	if strings.Contains(text, "${") {
		for name, value := range p.Vars {
			text = strings.ReplaceAll(text, "${"+name+"}", value)
		}
	}
	return text
}

// own returns the flags of the program itself.
func (p *App) own() Fields {
	help := struct {
		Help bool `short:"h" help:"Print this help."`
	}{}
	fields := appendFields(nil, reflect.ValueOf(&help).Elem())
	if p.Own != nil {
		fields = appendFields(fields, reflect.New(reflect.TypeOf(p.Own)).Elem())
	}
	return fields
}

// mistake returns the error for a word that is no command.
func (c *Command) mistake(word string) error {
	var known []string
	for _, child := range c.Shown() {
		known = append(known, child.Name)
	}
	above := c.Path
	if above != "" {
		above += " "
	}
	meant := nearest(word, known)
	habit := c.program.Habits.Commands[above+word]
	if name, _, _ := strings.Cut(habit, " "); meant == "" && slices.Contains(known, name) {
		meant = habit
	}
	if meant != "" {
		meant = above + meant
	}
	return UsageError(fmt.Sprintf("unknown command %s%s%s", above, word, Meant(meant)))
}
