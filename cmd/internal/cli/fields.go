package cli

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Field is a field of the flags of a command, with the content of its tag.
type Field struct {
	Option             // its name is the name of the flag, without dashes
	Short       string // a letter, or ""
	HasDefault  bool
	Required    bool
	Hidden      bool // not in the help
	Arguments   bool // not a flag, but the words after the flags
	Optional    bool // the arguments may be missing
	Passthrough bool // the arguments are the command line of another program

	tag     reflect.StructTag
	program *App // its variables are used in the help; nil for none
	splits  bool // commas separate several values
	bytes   bool // a value may have bytes that are not UTF-8
	given   bool // on the command line
	said    bool // set by the line, a variable or a file
	value   reflect.Value

	filed *Value // the value in a file; nil: none
	// fixed is the field if a file requires its value. Then value is another variable, which gets
	// the value of the line or of a variable.
	fixed reflect.Value
}

// Fields are the fields of a command's flags, in their order.
type Fields []Field

// Of lists the fields of the struct that flags points to.
func Of(flags any) Fields {
	return appendFields(make(Fields, 0, 64), reflect.ValueOf(flags).Elem())
}

// appendFields appends the fields of a struct, and of structs embedded in it, except commands.
func appendFields(fields Fields, v reflect.Value) Fields {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			fields = appendFields(fields, v.Field(i))
			continue
		}
		tag := plainTag(field.Tag)
		if _, command := tag.Lookup("cmd"); command || !field.IsExported() {
			continue
		}
		f := Field{value: v.Field(i), Short: tag.Get("short"), tag: field.Tag}
		f.Name, f.Type, f.Path = tag.Get("name"), field.Type, tag.Get("type") == "path"
		if f.Name == "" {
			f.Name = dashed(field.Name)
		}
		f.Env = words(tag.Get("env"))
		if enum, ok := tag.Lookup("enum"); ok {
			f.Enum = strings.Split(enum, ",")
		}
		f.Default, f.HasDefault = tag.Lookup("default")
		_, f.Required = tag.Lookup("required")
		_, f.Arguments = tag.Lookup("arg")
		_, f.Optional = tag.Lookup("optional")
		_, f.Passthrough = tag.Lookup("passthrough")
		_, f.Hidden = tag.Lookup("hidden")
		_, f.Secret = tag.Lookup("secret")
		_, f.bytes = tag.Lookup("bytes")
		f.bytes = f.bytes || f.Path
		f.splits = f.list() && !f.Arguments && tag.Get("sep") != "none"
		fields = append(fields, f)
	}
	return fields
}

// plainTag returns a tag without its help, which is its longest and last part, because looking up
// names is faster without it.
func plainTag(tag reflect.StructTag) reflect.StructTag {
	text, _, _ := strings.Cut(string(tag), `help:"`)
	return reflect.StructTag(text)
}

// words splits the value of a tag at its commas.
func words(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// dashed turns the name of a field into the name of its flag: ReadOnly becomes read-only, TLSCert
// tls-cert.
func dashed(name string) string {
	lower := func(i int) bool { return i < len(name) && 'a' <= name[i] && name[i] <= 'z' }
	var b strings.Builder
	for i, c := range []byte(strings.ToLower(name)) {
		if i > 0 && !lower(i) && (lower(i-1) || lower(i+1)) {
			b.WriteByte('-')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Options returns the options whose values files can hold.
func (fs Fields) Options() []Option {
	options := make([]Option, 0, len(fs))
	for i := range fs {
		if !fs[i].Arguments {
			options = append(options, fs[i].Option)
		}
	}
	return options
}

// Find returns the flag that is written as name, with its dashes. It returns nil if there is none.
func (fs Fields) Find(name string) *Field {
	for i := range fs {
		f := &fs[i]
		if f.Arguments {
			continue
		}
		if long, ok := strings.CutPrefix(name, "--"); ok && long == f.Name || f.Short != "" && name == "-"+f.Short {
			return f
		}
	}
	return nil
}

// Take gives the fields the values from files, which [Fields.Settle] sets. A required value is set
// at once, and nothing overrides it.
func (fs Fields) Take(values Values) {
	for i := range fs {
		f := &fs[i]
		v, ok := values[f.Name]
		if !ok || f.Arguments {
			continue
		}
		f.filed = &v
		if v.Required {
			v.Set(f.value)
			f.fixed, f.value = f.value, reflect.New(f.Type).Elem()
		}
	}
}

// Settle sets each field that the line does not set: to the value of a variable, else of a file,
// else to its default. The value of a variable must be valid even if the line sets the field.
func (fs Fields) Settle() error {
	for i := range fs {
		f := &fs[i]
		name, text, ok := Variable(f.Env, f.Path)
		switch {
		case ok && f.given:
			other := *f
			other.value = reflect.New(f.Type).Elem()
			if err := other.Set(text); err != nil {
				return other.from(name, text, err)
			}
		case f.given:
		case ok:
			f.said = true
			if err := f.Set(text); err != nil {
				return f.from(name, text, err)
			}
		case f.filed != nil:
			f.said = true
			f.filed.Set(f.value)
		case f.HasDefault:
			if err := f.Set(f.Default); err != nil {
				return err
			}
		}
	}
	return nil
}

// from returns an error about the value of a variable.
func (f *Field) from(name, text string, err error) error {
	return fmt.Errorf("%w (from the variable %s=%q)", err, name, text)
}

// Said returns a function for [Layers.Merge], which returns the value of a flag or a variable.
// given has the flags on the line.
func (fs Fields) Said(given map[string]string) func(option string) (text string, ok bool) {
	return func(option string) (text string, ok bool) {
		if text, ok = given[option]; ok {
			return text, true
		}
		if f := fs.Find("--" + option); f != nil {
			_, text, ok = Variable(f.Env, f.Path)
		}
		return text, ok
	}
}

// overrides lists the flags and variables that have no effect.
func (fs Fields) overrides() (said []string) {
	for i := range fs {
		f := &fs[i]
		if !f.fixed.IsValid() || reflect.DeepEqual(f.value.Interface(), f.fixed.Interface()) {
			continue
		}
		by := "--" + f.Name
		if !f.given {
			by, _, _ = Variable(f.Env, f.Path)
		}
		if by != "" {
			said = append(said, f.filed.Override(by))
		}
	}
	return said
}

// Boolean reports whether the flag takes no value.
func (f *Field) Boolean() bool {
	return f.Type.Kind() == reflect.Bool || f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Bool
}

// list reports whether the field takes several values.
func (f *Field) list() bool { return f.Type.Kind() == reflect.Slice }

// Set sets the field to the value that text describes, or adds the value to a list.
func (f *Field) Set(text string) error {
	if !f.bytes && !utf8.ValidString(text) {
		return f.named(fmt.Errorf("%q is not UTF-8", text))
	}
	if !f.list() {
		return f.named(f.parse(f.value, text))
	}
	texts := []string{text}
	if f.splits {
		texts = words(strings.TrimSuffix(text, ","))
	}
	if f.value.IsNil() {
		f.value.Set(reflect.MakeSlice(f.Type, 0, len(texts)))
	}
	for _, text := range texts {
		element := reflect.New(f.Type.Elem()).Elem()
		if err := f.parse(element, text); err != nil {
			return f.named(err)
		}
		f.value.Set(reflect.Append(f.value, element))
	}
	return nil
}

// named returns an error that begins with the name of the field.
func (f *Field) named(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", f.name(), err)
	}
	return nil
}

// parse sets v to one value of the field.
func (f *Field) parse(v reflect.Value, text string) error {
	switch {
	case !f.Path || text == "-":
	case text == "" && f.HasDefault: // the field stays empty
	default:
		text = absolute(text)
	}
	return parse(v, text)
}

// absolute returns a path that is valid in any working directory. ~/ is the home of this process's
// user.
func absolute(path string) string {
	if rest, home := strings.CutPrefix(path, "~/"); home {
		if who, err := user.Current(); err == nil {
			return filepath.Join(who.HomeDir, rest)
		}
	}
	if filepath.IsAbs(path) {
		return path
	}
	folder, err := os.Getwd()
	if err != nil {
		return path
	}
	return filepath.Join(folder, path)
}

var (
	duration    = reflect.TypeFor[time.Duration]()
	unmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// parse sets v to the value that text describes.
func parse(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if reflect.PointerTo(v.Type()).Implements(unmarshaler) {
		return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	}
	var err error
	switch {
	case v.Type() == duration:
		var d time.Duration
		if d, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%q is not a duration such as 30s, 5m or 1h30m", text)
		}
		v.SetInt(int64(d))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		word := strings.ToLower(text)
		v.SetBool(slices.Contains(yes, word))
		if !v.Bool() && !slices.Contains(no, word) {
			return fmt.Errorf("bool value must be true, 1, yes, false, 0 or no but got %q", word)
		}
	case v.CanInt():
		var n int64
		n, err = strconv.ParseInt(text, 0, v.Type().Bits())
		v.SetInt(n)
	case v.CanUint():
		var n uint64
		n, err = strconv.ParseUint(text, 0, v.Type().Bits())
		v.SetUint(n)
	case v.CanFloat():
		var n float64
		n, err = strconv.ParseFloat(text, v.Type().Bits())
		v.SetFloat(n)
	default:
		return errors.New("a flag of this type cannot be set")
	}
	if err != nil {
		return fmt.Errorf("%q is not a number", text)
	}
	return nil
}

var yes, no = []string{"true", "1", "yes"}, []string{"false", "0", "no"}

// names returns the flags that the help lists, with their dashes.
func (fs Fields) names() (names []string) {
	for i := range fs {
		if f := &fs[i]; !f.Arguments && !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	}
	return names
}
