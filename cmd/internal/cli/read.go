package cli

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// checker is a command that checks its flags together. [App.Read] calls Check after all flags are
// set. Required flags may be missing then.
type checker interface{ Check() error }

// Line is a line that was read.
type Line struct {
	Command   *Command
	Flags     any      // of the command, set; nil if AtOnce is set
	AtOnce    string   // the first flag of the program itself that is given, such as help; "" for none
	Overrides []string // flags and variables that have no effect because of a file
}

// Command returns the command that the first words of a line name, or the program itself if they
// name none. The error is a [UsageError] about a word that is no command.
func (p *App) Command(args []string) (*Command, error) {
	c, _, err := p.command(args)
	return c, err
}

// command does what Command does, and also returns the words after the command.
func (p *App) command(args []string) (c *Command, rest []string, err error) {
	c = p.Root()
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") && len(c.Below()) > 0 {
		child := c.child(args[0])
		if child == nil {
			return c, args, c.mistake(args[0])
		}
		c, args = child, args[1:]
	}
	return c, args, nil
}

// Read sets the flags of the command that a line names, and checks them. values are the values from
// files for this command. The error is about the first mistake. Mistakes in a single word are
// reported before mistakes that concern the whole line.
func (p *App) Read(args []string, values Values) (*Line, error) {
	command, rest, err := p.command(args)
	if err != nil {
		return nil, err
	}
	r := reader{own: p.own()}
	r.enter(command)
	r.fields.Take(values)
	if err := r.words(rest); err != nil {
		return nil, err
	}
	if r.atOnce != "" {
		return &Line{Command: r.command, AtOnce: r.atOnce}, nil
	}
	if r.ahead != nil {
		r.command = r.ahead
	}
	if err := r.fields.Settle(); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return &Line{Command: r.command, Flags: r.flags, Overrides: r.fields.overrides()}, nil
}

// reader is a line that is being read.
type reader struct {
	command *Command
	ahead   *Command // the default command below it, whose flags are being read
	flags   any      // of ahead, or of command
	fields  Fields   // of flags
	own     Fields   // of the program
	atOnce  string   // the first flag of own that was given
	next    int      // index of the field with the next argument
	literal bool     // all further words are arguments
}

// enter continues with the flags of a command.
func (r *reader) enter(c *Command) {
	r.command, r.ahead, r.next = c, c.fallback(), 0
	if r.ahead != nil {
		c = r.ahead
	}
	r.flags = c.New()
	r.fields = c.Of(r.flags)
}

// words reads all words of the line after the command.
func (r *reader) words(args []string) (err error) {
	for len(args) > 0 && err == nil {
		word := args[0]
		switch argument := r.argument(); {
		case !r.literal && word == "--":
			r.literal = true
			if argument == nil || !argument.Passthrough {
				args = args[1:]
			}
		case !r.literal && looksLikeFlag(word):
			args, err = r.flag(args, argument)
		case argument != nil:
			args, err = r.take(argument, args)
		default:
			args, err = args[1:], r.branch(word)
		}
	}
	return err
}

// argument returns the field for the next argument, or nil.
func (r *reader) argument() *Field {
	if r.ahead != nil {
		return nil
	}
	for i := r.next; i < len(r.fields); i++ {
		if r.fields[i].Arguments {
			r.next = i
			return &r.fields[i]
		}
	}
	return nil
}

// flag reads the flag at the front of args, and returns the words after it. If the command line of
// another program may follow, an unknown flag begins that line, and [checker] reports it.
func (r *reader) flag(args []string, argument *Field) (rest []string, err error) {
	f, value, rest, err := r.own.flag(args)
	if f != nil && err == nil {
		if r.atOnce == "" {
			r.atOnce = f.Name
		}
		return rest, f.Set(value)
	}
	if f == nil {
		f, value, rest, err = r.fields.flag(args)
	}
	unknown, ok := errors.AsType[*UnknownFlag](err)
	switch {
	case ok && argument != nil && argument.Passthrough:
		word := args[0]
		if !strings.HasPrefix(word, "--") {
			word = unknown.Flag // the flag may stand after others in the same word
		}
		return r.take(argument, append([]string{word}, rest...))
	case ok:
		unknown.near = cmp.Or(unknown.near, nearest(unknown.Flag, r.own.names()))
		return nil, unknown
	case err != nil:
		return nil, err
	}
	f.given, f.said = true, true
	return rest, f.Set(value)
}

// take gives an argument its words: one word, or all words up to the next flag.
func (r *reader) take(f *Field, args []string) (rest []string, err error) {
	n := 1
	switch {
	case f.Passthrough || f.list() && r.literal:
		n = len(args)
	case f.list():
		for n < len(args) && !looksLikeFlag(args[n]) {
			n++
		}
	}
	f.given, f.said = true, true
	r.next++
	for _, word := range args[:n] {
		if err := f.Set(word); err != nil {
			return nil, err
		}
	}
	return args[n:], nil
}

// branch continues with the command that a word names. After flags, this may be the default
// command, to which the flags belong, or a command in a request for help, as in --help exec. Other
// commands are refused, because files were read only for the default command.
func (r *reader) branch(word string) error {
	child := r.command.child(word)
	switch {
	case child == nil:
	case r.atOnce != "":
		r.enter(child)
		return nil
	case child == r.ahead:
		r.command, r.ahead = child, nil
		return nil
	default:
		if i := slices.IndexFunc(r.fields, func(f Field) bool { return f.given }); i >= 0 {
			return UsageError(fmt.Sprintf("flag --%s applies to the default command %q, not %q", r.fields[i].Name, r.ahead.Name, child.Name))
		}
	}
	return UsageError("unexpected argument " + word)
}

// looksLikeFlag reports whether a word begins like a flag.
func looksLikeFlag(word string) bool { return strings.HasPrefix(word, "-") && word != "-" }

// UnknownFlag is the error of a flag that a command does not have.
type UnknownFlag struct {
	Flag string // as written, without a value
	near string // the flag that may be meant
}

func (e *UnknownFlag) Error() string {
	if e.near != "" {
		return fmt.Sprintf("unknown flag %s, did you mean %q?", e.Flag, e.near)
	}
	return "unknown flag " + e.Flag
}

// flag reads the flag at the front of args, with its value. If several letters stand behind one
// dash, it reads the first letter, and rest begins with the others. A flag that takes no value has
// the value true.
func (fs Fields) flag(args []string) (f *Field, value string, rest []string, err error) {
	word, rest := args[0], args[1:]
	name, value, inline := strings.Cut(word, "=")
	tail := ""
	if !strings.HasPrefix(word, "--") {
		_, size := utf8.DecodeRuneInString(word[1:])
		name, tail, inline = word[:1+size], word[1+size:], false
	}
	if f = fs.Find(name); f == nil {
		return nil, "", rest, &UnknownFlag{name, nearest(name, fs.names())}
	}
	switch {
	case f.Boolean() && tail != "":
		return f, "true", append([]string{"-" + tail}, rest...), nil
	case f.Boolean() && !inline:
		return f, "true", rest, nil
	case inline:
		return f, value, rest, nil
	case tail != "":
		return f, tail, rest, nil
	case len(rest) == 0 || rest[0] == "--":
		return f, "", rest, UsageError(f.name() + " needs a value" + f.choice())
	case looksLikeFlag(rest[0]):
		return f, "", rest, UsageError(fmt.Sprintf("%s needs a value; write a value that begins with - as %[1]s=%s", f.name(), rest[0]))
	}
	return f, rest[0], rest[1:], nil
}

// Given returns what [Fields.Given] does for the command of a line.
func (p *App) Given(args []string) (given map[string]string, unknown *UnknownFlag) {
	c, rest, err := p.command(args)
	if fallback := c.fallback(); fallback != nil && err == nil {
		c = fallback
	}
	return c.Of(c.New()).Given(rest)
}

// Given returns the values of the flags on a command line, up to the command of another program.
// The line may have mistakes. args are the words after the command. A boolean flag has the value
// "true". unknown is about the first flag that the command does not have; nil if there is none.
func (fs Fields) Given(args []string) (given map[string]string, unknown *UnknownFlag) {
	given = map[string]string{}
	program := slices.ContainsFunc(fs, func(f Field) bool { return f.Passthrough })
	for len(args) > 0 {
		if !looksLikeFlag(args[0]) && !program {
			args = args[1:] // flags may follow an argument, unless the argument begins another command line
			continue
		}
		if args[0] == "--" || !looksLikeFlag(args[0]) {
			break
		}
		f, value, rest, err := fs.flag(args)
		args = rest
		if err != nil {
			if unknown == nil {
				unknown, _ = errors.AsType[*UnknownFlag](err)
			}
			continue
		}
		if before, again := given[f.Name]; again && f.list() {
			value = before + " " + value
		}
		given[f.Name] = value
	}
	return given, unknown
}

// check checks the values of a line.
func (r *reader) check() error {
	for i := range r.fields {
		if err := r.fields[i].checkEnum(); err != nil {
			return err
		}
	}
	if c, ok := r.flags.(checker); ok {
		if err := c.Check(); err != nil {
			return err
		}
	}
	var missing []string
	for i := range r.fields {
		if f := &r.fields[i]; f.Required && !f.said {
			missing = append(missing, f.summary())
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return UsageError("missing flags: " + strings.Join(missing, ", "))
	}
	for i := range r.fields {
		if f := &r.fields[i]; f.Arguments && !f.Optional && !f.said {
			return UsageError(fmt.Sprintf("<%s> is missing", f.Name))
		}
	}
	return r.command.incomplete()
}

// checkEnum returns an error if the grammar does not allow the value.
func (f *Field) checkEnum() error {
	v := reflect.Indirect(f.value)
	if len(f.Enum) == 0 || !v.IsValid() || (f.Required || f.Arguments) && !f.said || slices.Contains(f.Enum, v.String()) {
		return nil
	}
	return UsageError(fmt.Sprintf("%s must be one of %s but got %q", f.name(), quoted(f.choices(), ","), v))
}

// choices returns the words that the field accepts, without the empty word.
func (f *Field) choices() []string {
	return slices.DeleteFunc(slices.Clone(f.Enum), func(word string) bool { return word == "" })
}

// choice returns the end of an error text that says that a value is missing.
func (f *Field) choice() string {
	if len(f.Enum) == 0 {
		return ""
	}
	return ": " + strings.Join(f.choices(), " or ")
}

// incomplete returns an error if the command only has commands below it and does nothing by itself.
func (c *Command) incomplete() error {
	var names []string
	for _, child := range c.Shown() {
		names = append(names, child.Name)
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return UsageError(fmt.Sprintf("expected %q", names[0]))
	}
	return UsageError("expected one of " + quoted(names, ", "))
}

func quoted(words []string, separator string) string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = strconv.Quote(word)
	}
	return strings.Join(all, separator)
}
