package layers

import (
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Find returns a command of the grammar, "exec" or "keys create"; nil if there is none.
func Find(app *kong.Application, command string) *kong.Node {
	node := app.Node
	for word := range strings.SplitSeq(command, " ") {
		i := slices.IndexFunc(node.Children, func(child *kong.Node) bool { return child.Name == word })
		if i < 0 {
			return nil
		}
		node = node.Children[i]
	}
	return node
}

// Options are those of a command in the grammar.
func Options(command *kong.Node) (options []Option) {
	for _, flag := range command.Flags {
		if flag.Name == "help" {
			continue
		}
		options = append(options, optionOf(flag))
	}
	return options
}

func optionOf(flag *kong.Flag) Option {
	o := Option{
		Name: flag.Name, Type: flag.Target.Type(), Env: flag.Envs, Default: flag.Default,
		Path: flag.Tag.Type == "path", Secret: flag.Tag.Has("secret"),
	}
	if flag.Enum != "" {
		o.Enum = strings.Split(flag.Enum, ",")
	}
	return o
}

// Bound are values that a parser takes.
type Bound struct {
	values map[*kong.Flag]Value
	asked  map[*kong.Flag]reflect.Value // what the line and variables say of what is required
	real   map[*kong.Flag]reflect.Value
}

// Bind has a parser take values for the options of a command. It is called before the line is
// parsed.
//
// A required value is put in its place, and the parser is given another place for what the line
// says: that is checked as always, and has no effect.
func Bind(parser *kong.Kong, command string, values Values) (*Bound, error) {
	b := &Bound{map[*kong.Flag]Value{}, map[*kong.Flag]reflect.Value{}, map[*kong.Flag]reflect.Value{}}
	if len(values) == 0 {
		return b, nil
	}
	node := Find(parser.Model, command)
	if node == nil {
		return b, nil
	}
	for _, flag := range node.Flags {
		v, ok := values[flag.Name]
		if !ok {
			continue
		}
		b.values[flag] = v
		flag.Required = false
		if v.Required {
			v.Set(flag.Target)
			b.real[flag] = flag.Target
			flag.Target = reflect.New(flag.Target.Type()).Elem()
			b.asked[flag] = flag.Target
		}
	}
	return b, kong.Resolvers(b).Apply(parser)
}

// Validate accepts every grammar: the values were read for it.
func (b *Bound) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that is not on the line, and has no variable.
func (b *Bound) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if v, ok := b.values[flag]; ok && variable(flag) == "" {
		return v.raw, nil
	}
	return nil, nil
}

func variable(flag *kong.Flag) string {
	name, _, _ := Variable(flag.Envs, flag.Tag.Type == "path")
	return name
}

// Overrides says which of what the line and variables ask for has no effect. It is called when
// the line was parsed.
func (b *Bound) Overrides(parsed *kong.Context) (said []string) {
	given := map[*kong.Flag]bool{}
	for _, path := range parsed.Path {
		if path.Flag != nil && !path.Resolved {
			given[path.Flag] = true
		}
	}
	for flag, asked := range b.asked {
		by := "--" + flag.Name
		if !given[flag] {
			by = variable(flag)
		}
		if by != "" && !reflect.DeepEqual(asked.Interface(), b.real[flag].Interface()) {
			said = append(said, b.values[flag].Override(by))
		}
	}
	return said
}
