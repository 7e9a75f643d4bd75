// Package plain reads the command lines that need no parser.
//
// To build the parser, even for one command, and to parse with it takes as long as
// everything else that an agent does until it listens, and causes more page
// faults. A plain line needs no parser: its flags are written in full, each once,
// with values of the usual form.
//
// This is no second grammar. The package reads the tags of the same fields and
// gives up on any line that is not plain, above all on a wrong one: then the
// parser says what is wrong. FuzzParsePlain of cmd/agent compares the results of both.
package plain

import (
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/cmd/internal/layers"
)

// Parse fills in the flags of one command, a pointer to a struct, without the parser, if the
// command line is plain, and tells whether it was. If it was not, the flags are half filled in and
// must not be used. values are those of files; overrides says which flags and variables have no
// effect because of them.
func Parse(args []string, flags any, values layers.Values) (overrides []string, ok bool) {
	fs := Of(flags)
	fs.Take(values)
	if !fs.Defaults() || !fs.arguments(args) || !fs.complete() {
		return nil, false
	}
	if validator, ok := flags.(interface{ Check() error }); ok && validator.Check() != nil {
		return nil, false
	}
	return fs.overrides(), true
}

// Field is a field of the flags, with what its tag says.
type Field struct {
	Name        string   // of the flag, without dashes
	Short       string   // a letter, or ""
	Env         []string // variables; the first that is set counts
	Default     string
	HasDefault  bool
	Enum        []string // nil: any value
	Path        bool     // the parser would make a relative value absolute
	Required    bool
	Hidden      bool // not in the help
	Arguments   bool // no flag: what comes after the flags
	Passthrough bool // and that is the command line of another program
	Secret      bool // the value is shown to nobody

	words    bool // or a list of words, each as it is
	optional bool // or nothing
	given    bool // on the command line
	value    reflect.Value

	filed *layers.Value // what a file says; nil: nothing
	// fixed is the field if a file requires its value. Then value is another one, for what the
	// line and variables say.
	fixed reflect.Value
}

// Fields are those of a command's flags, in their order.
type Fields []Field

// Of lists the fields of the struct that flags points to.
func Of(flags any) Fields {
	return appendFields(make(Fields, 0, 64), reflect.ValueOf(flags).Elem())
}

// appendFields appends the fields of a struct, and of those embedded in it.
func appendFields(fields Fields, v reflect.Value) Fields {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			fields = appendFields(fields, v.Field(i))
			continue
		}
		if !field.IsExported() {
			continue
		}
		// The help is the longest part of a tag and the last one. Looking names up
		// in the tag is faster without it.
		text, _, _ := strings.Cut(string(field.Tag), `help:"`)
		tag := reflect.StructTag(text)
		f := Field{value: v.Field(i), Name: tag.Get("name"), Short: tag.Get("short"), Path: tag.Get("type") == "path"}
		if f.Name == "" {
			f.Name = Dashed(field.Name)
		}
		if env := tag.Get("env"); env != "" {
			f.Env = strings.Split(env, ",")
		}
		if enum, ok := tag.Lookup("enum"); ok {
			f.Enum = strings.Split(enum, ",")
		}
		f.Default, f.HasDefault = tag.Lookup("default")
		_, f.Required = tag.Lookup("required")
		_, f.Arguments = tag.Lookup("arg")
		_, f.Passthrough = tag.Lookup("passthrough")
		_, f.optional = tag.Lookup("optional")
		f.words = f.Arguments && tag.Get("sep") == "none"
		_, f.Hidden = tag.Lookup("hidden")
		_, f.Secret = tag.Lookup("secret")
		fields = append(fields, f)
	}
	return fields
}

// Dashed turns the name of a field into the name of its flag: ReadOnly becomes
// read-only. It would spell out an acronym, as in u-r-l; such fields have the name
// in their tag.
func Dashed(name string) string {
	var b strings.Builder
	for i, c := range []byte(name) {
		if 'A' <= c && c <= 'Z' {
			if i > 0 {
				b.WriteByte('-')
			}
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Take has the fields take what files say, which [Fields.Defaults] sets. A required value is in its
// place at once, and for good.
func (fs Fields) Take(values layers.Values) {
	for i := range fs {
		f := &fs[i]
		v, ok := values[f.Name]
		if !ok || f.Arguments {
			continue
		}
		f.filed = &v
		if v.Required {
			v.Set(f.value)
			f.fixed, f.value = f.value, reflect.New(f.value.Type()).Elem()
		}
	}
}

// overrides says which flags and variables have no effect.
func (fs Fields) overrides() (said []string) {
	for i := range fs {
		f := &fs[i]
		if !f.fixed.IsValid() || reflect.DeepEqual(f.value.Interface(), f.fixed.Interface()) {
			continue
		}
		by := "--" + f.Name
		if !f.given {
			by, _, _ = layers.Variable(f.Env, f.Path)
		}
		said = append(said, f.filed.Override(by))
	}
	return said
}

// Options are what files may be asked about.
func (fs Fields) Options() []layers.Option {
	options := make([]layers.Option, 0, len(fs))
	for i := range fs {
		if f := &fs[i]; !f.Arguments {
			options = append(options, layers.Option{
				Name: f.Name, Type: f.value.Type(), Env: f.Env, Default: f.Default, Enum: f.Enum, Path: f.Path, Secret: f.Secret,
			})
		}
	}
	return options
}

// Defaults sets each field to what a variable says, or else a file, or else to its default. It
// returns false at a value that is not plain.
func (fs Fields) Defaults() bool {
	for i := range fs {
		f := &fs[i]
		_, value, ok := layers.Variable(f.Env, f.Path)
		switch {
		case ok:
		case f.filed != nil:
			f.filed.Set(f.value)
			continue
		default:
			value, ok = f.Default, f.HasDefault
		}
		if ok && !f.Set(value) {
			return false
		}
	}
	return true
}

// arguments sets the fields that the command line names. It returns false if that is not plain, as
// program and complete do.
func (fs Fields) arguments(args []string) bool {
	for len(args) > 0 {
		arg := args[0]
		if !strings.HasPrefix(arg, "-") || arg == "--" {
			return fs.program(args)
		}
		args = args[1:]
		name, value, inline := strings.Cut(arg, "=")
		f := fs.Find(name)
		if f == nil || f.given && f.value.Kind() != reflect.Slice {
			return false
		}
		switch {
		case f.Boolean():
			if inline {
				return false
			}
			value = "true"
		case inline:
			if len(name) == 2 { // -C=DIR
				return false
			}
		case len(args) == 0 || args[0] == "" || args[0][0] == '-':
			return false
		default:
			value, args = args[0], args[1:]
		}
		if !f.given && f.value.Kind() == reflect.Slice {
			f.value.SetZero() // values of the command line replace those of the variable
		}
		f.given = true
		if !f.Set(value) {
			return false
		}
	}
	return true
}

// Given returns the values of the flags that are on a command line, which may be wrong, up to
// the command of another program; args are those behind the command. A boolean one has the
// value "true". unknown is the first word that looks like a flag and is none, "" if there is none.
func (fs Fields) Given(args []string) (given map[string]string, unknown string) {
	given = map[string]string{}
	program := slices.ContainsFunc(fs, func(f Field) bool { return f.Passthrough })
	for len(args) > 0 {
		arg := args[0]
		// Behind an argument come flags, too, unless it begins another command line.
		if arg == "--" || program && !strings.HasPrefix(arg, "-") {
			break
		}
		args = args[1:]
		name, value, inline := strings.Cut(arg, "=")
		f := fs.Find(name)
		if f == nil {
			// Several short flags, or a value, may be in one word.
			if looksLikeFlag(arg) && unknown == "" && (strings.HasPrefix(arg, "--") || fs.Find(arg[:2]) == nil) {
				unknown = name
			}
			continue
		}
		switch {
		case f.Boolean():
			value = "true"
		case !inline && len(args) == 0:
			continue // the value is missing
		case !inline:
			value, args = args[0], args[1:]
		}
		if before, again := given[f.Name]; again && f.value.Kind() == reflect.Slice {
			value = before + " " + value
		}
		given[f.Name] = value
	}
	return given, unknown
}

// Find returns the flag that is written as name, with its dashes, or nil.
func (fs Fields) Find(name string) *Field {
	for i := range fs {
		f := &fs[i]
		if f.Arguments {
			continue
		}
		if long, ok := strings.CutPrefix(name, "--"); ok && long == f.Name || len(name) == 2 && name[1:] == f.Short {
			return f
		}
	}
	return nil
}

// program sets the field arguments to all of args: the command line of another
// program, or words of which none looks like a flag. A command without such a field takes none
// here: the parser knows its arguments.
func (fs Fields) program(args []string) bool {
	for i := range fs {
		f := &fs[i]
		if f.Passthrough || f.words && !slices.ContainsFunc(args, looksLikeFlag) {
			f.given = true
			f.value.Set(reflect.ValueOf(slices.Clone(args)))
			return !slices.ContainsFunc(args, func(s string) bool { return !utf8.ValidString(s) })
		}
	}
	return false
}

func looksLikeFlag(arg string) bool { return strings.HasPrefix(arg, "-") && arg != "-" }

// complete tells whether required fields and arguments are given, and whether all
// values are among those that their tags allow.
func (fs Fields) complete() bool {
	for i := range fs {
		f := &fs[i]
		if (f.Required || f.Arguments && !f.optional) && !f.given && f.filed == nil {
			return false
		}
		if len(f.Enum) > 0 && !slices.Contains(f.Enum, f.value.String()) {
			return false
		}
	}
	return true
}

// Boolean tells whether the flag takes no value.
func (f *Field) Boolean() bool { return f.value.Kind() == reflect.Bool }

var duration = reflect.TypeFor[time.Duration]()

// Set sets the field to the value that text says, or adds it to a list. It returns
// false if the value is not plain: wrong, or of a form that only the parser reads,
// such as 0x10, yes, or a relative path.
func (f *Field) Set(text string) bool {
	v := f.value
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	decimal := text == "0" || text != "" && '1' <= text[0] && text[0] <= '9' && !strings.Contains(text, "_")
	switch kind := v.Kind(); {
	case v.Type() == duration:
		d, err := time.ParseDuration(text)
		v.SetInt(int64(d))
		return err == nil
	case kind == reflect.Int || kind == reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		v.SetInt(n)
		return err == nil && decimal
	case kind == reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		v.SetUint(n)
		return err == nil && decimal
	case kind == reflect.Bool:
		v.SetBool(text == "true" || text == "1")
		return text == "true" || text == "1" || text == "false" || text == "0"
	case !utf8.ValidString(text):
		return false
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.String && !f.Path:
		v.Set(reflect.Append(v, reflect.ValueOf(text)))
		return true
	case kind == reflect.String && f.Path:
		v.SetString(text)
		return filepath.IsAbs(text)
	case kind == reflect.String:
		v.SetString(text)
		return true
	}
	return false
}
