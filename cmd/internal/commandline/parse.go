package commandline

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// checker is a command that finds what is wrong with its flags together. Parse calls Check when all
// are filled in; required ones may be missing.
//
// It is not called Validate, which is what kong calls: kong's Context has a method of that name and
// type too, which the linker would keep for the calls of ours. See [Parse].
type checker interface{ Check() error }

// atOnce is a flag that does what it is for before anything else is looked at, and then exits:
// kong's own --help, and --version.
type atOnce interface {
	BeforeReset(line *kong.Context) error
}

// Parse fills in the flags of the command that a line names, and checks them. It returns the line
// as kong has understood it.
//
// It takes the steps of Kong.Parse, but for kong's hooks: for these kong looks methods up by names
// that the linker does not know, which then keeps the exported methods of all types, 1.7 MB of the
// agent. So nothing may call Kong.Parse, or Context.Call, Run or Validate (.golangci.yml). Groups
// of flags (the tags xor and and) are not checked here, so a grammar that has one is refused.
func Parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	line, err := kong.Trace(parser, args)
	if err == nil {
		err = line.Error
	}
	if err != nil {
		return nil, err
	}
	for _, step := range line.Path {
		if step.Flag == nil {
			continue
		}
		if flag, ok := step.Flag.Target.Interface().(atOnce); ok {
			if err := flag.BeforeReset(line); err != nil {
				return nil, err
			}
		}
	}
	if err := line.Reset(); err != nil {
		return nil, err
	}
	if err := line.Resolve(); err != nil {
		return nil, err
	}
	if _, err := line.Apply(); err != nil {
		return nil, err
	}
	return line, check(line)
}

// check finds what is wrong with the values of a line.
func check(line *kong.Context) error {
	for _, step := range line.Path {
		if node := step.Node(); node != nil {
			for _, v := range node.Values() {
				if err := checkEnum(v); err != nil {
					return err
				}
			}
		}
	}
	command := cmp.Or(line.Selected(), line.Model.Node)
	if c, ok := command.Target.Addr().Interface().(checker); ok {
		if err := c.Check(); err != nil {
			return err
		}
	}
	return cmp.Or(missingFlags(line.Flags()), missingArgument(command), missingCommand(command))
}

// checkEnum tells whether a value is one that the grammar allows.
func checkEnum(v *kong.Value) error {
	if v.Enum == "" || v.Required && !v.Set {
		return nil
	}
	allowed := v.EnumSlice()
	text := fmt.Sprint(reflect.Indirect(v.Target))
	if slices.Contains(allowed, text) {
		return nil
	}
	// Some flags have the empty word as default, which nobody types.
	allowed = slices.DeleteFunc(allowed, func(word string) bool { return word == "" })
	return fmt.Errorf("%s must be one of %s but got %q", v.ShortSummary(), quoted(allowed, ","), text)
}

func missingFlags(flags []*kong.Flag) error {
	var missing []string
	for _, flag := range flags {
		if len(flag.Xor)+len(flag.And) > 0 {
			return fmt.Errorf("--%s is in a group of flags, and Parse does not check them", flag.Name)
		}
		if flag.Required && !flag.Set {
			missing = append(missing, flag.Summary())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("missing flags: %s", strings.Join(missing, ", "))
}

func missingArgument(command *kong.Node) error {
	for _, argument := range command.Positional {
		if argument.Required && !argument.Set {
			return fmt.Errorf("<%s> is missing", argument.Name)
		}
	}
	return nil
}

// missingCommand tells whether a command does nothing without one of those below it.
func missingCommand(command *kong.Node) error {
	var names []string
	for _, child := range command.Children {
		if !child.Hidden {
			names = append(names, child.Name)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("expected %q", names[0])
	}
	return fmt.Errorf("expected one of %s", quoted(names, ", "))
}

func quoted(words []string, separator string) string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = strconv.Quote(word)
	}
	return strings.Join(all, separator)
}
