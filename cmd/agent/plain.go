package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// parsePlain fills in the flags of one command without the parser, if the command
// line is plain, and tells whether it was. If it was not, the flags are half
// filled in and must not be used.
//
// To build the parser, even for one command, and to parse with it takes as long as
// everything else that an agent does until it listens, and causes more page
// faults. A plain line needs no parser: its flags are written in full, each once,
// with values of the usual form.
//
// This is no second grammar. parsePlain reads the tags of the same fields and
// gives up on any line that is not plain, above all on a wrong one: then the
// parser says what is wrong. FuzzParsePlain compares the results of both.
func parsePlain(args []string, flags any) bool {
	p := plain{plainFields(flags)}
	if !p.defaults() || !p.arguments(args) || !p.complete() {
		return false
	}
	validator, ok := flags.(interface{ Validate() error })
	return !ok || validator.Validate() == nil
}

// plainField is a field of the flags, with what its tag says.
type plainField struct {
	value       reflect.Value
	name        string   // of the flag, without dashes
	short       string   // a letter, or ""
	env         []string // variables; the first that is set counts
	preset      string   // the default
	hasPreset   bool
	enum        []string // nil: any value
	path        bool     // the parser would make a relative value absolute
	required    bool
	arguments   bool // no flag: what comes after the flags
	passthrough bool // and that is the command line of another program
	words       bool // or a list of words, each as it is
	optional    bool // or nothing
	hidden      bool // not in the help
	given       bool // on the command line
}

// plainFields lists the fields of a command's flags, in their order.
func plainFields(flags any) []plainField {
	return appendPlain(make([]plainField, 0, 64), reflect.ValueOf(flags).Elem())
}

// appendPlain appends the fields of a struct, and of those embedded in it.
func appendPlain(fields []plainField, v reflect.Value) []plainField {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			fields = appendPlain(fields, v.Field(i))
			continue
		}
		if !field.IsExported() {
			continue
		}
		// The help is the longest part of a tag and the last one. Looking names up
		// in the tag is faster without it.
		text, _, _ := strings.Cut(string(field.Tag), `help:"`)
		tag := reflect.StructTag(text)
		f := plainField{value: v.Field(i), name: tag.Get("name"), short: tag.Get("short"), path: tag.Get("type") == "path"}
		if f.name == "" {
			f.name = dashed(field.Name)
		}
		if env := tag.Get("env"); env != "" {
			f.env = strings.Split(env, ",")
		}
		if enum, ok := tag.Lookup("enum"); ok {
			f.enum = strings.Split(enum, ",")
		}
		f.preset, f.hasPreset = tag.Lookup("default")
		_, f.required = tag.Lookup("required")
		_, f.arguments = tag.Lookup("arg")
		_, f.passthrough = tag.Lookup("passthrough")
		_, f.optional = tag.Lookup("optional")
		f.words = f.arguments && tag.Get("sep") == "none"
		_, f.hidden = tag.Lookup("hidden")
		fields = append(fields, f)
	}
	return fields
}

// dashed turns the name of a field into the name of its flag: ReadOnly becomes
// read-only. It would spell out an acronym, as in u-r-l; such fields have the name
// in their tag.
func dashed(name string) string {
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

// plain parses one line. Its methods return false where the line is not plain.
type plain struct{ fields []plainField }

// defaults sets each field to what a variable says, or else to its default.
func (p *plain) defaults() bool {
	for i := range p.fields {
		f := &p.fields[i]
		value, ok := f.preset, f.hasPreset
		for _, name := range f.env {
			if text, set := os.LookupEnv(name); set {
				value, ok = text, true
				break
			}
		}
		if ok && !f.set(value) {
			return false
		}
	}
	return true
}

// arguments sets the fields that the command line names.
func (p *plain) arguments(args []string) bool {
	for len(args) > 0 {
		arg := args[0]
		if !strings.HasPrefix(arg, "-") || arg == "--" {
			return p.program(args)
		}
		args = args[1:]
		name, value, inline := strings.Cut(arg, "=")
		f := p.find(name)
		if f == nil || f.given && f.value.Kind() != reflect.Slice {
			return false
		}
		switch {
		case f.boolean():
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
		if !f.set(value) {
			return false
		}
	}
	return true
}

// find returns the flag that is written as name, with its dashes, or nil.
func (p *plain) find(name string) *plainField {
	for i := range p.fields {
		f := &p.fields[i]
		if f.arguments {
			continue
		}
		if long, ok := strings.CutPrefix(name, "--"); ok && long == f.name || len(name) == 2 && name[1:] == f.short {
			return f
		}
	}
	return nil
}

// program sets the field arguments to all of args: the command line of another
// program, or words of which none looks like a flag. A command without such a field takes none
// here: the parser knows its arguments.
func (p *plain) program(args []string) bool {
	for i := range p.fields {
		f := &p.fields[i]
		if f.passthrough || f.words && !slices.ContainsFunc(args, looksLikeFlag) {
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
func (p *plain) complete() bool {
	for i := range p.fields {
		f := &p.fields[i]
		if (f.required || f.arguments && !f.optional) && !f.given {
			return false
		}
		if len(f.enum) > 0 && !slices.Contains(f.enum, f.value.String()) {
			return false
		}
	}
	return true
}

// boolean tells whether the flag takes no value.
func (f *plainField) boolean() bool { return f.value.Kind() == reflect.Bool }

var duration = reflect.TypeFor[time.Duration]()

// set sets the field to the value that text says, or adds it to a list. It returns
// false if the value is not plain: wrong, or of a form that only the parser reads,
// such as 0x10, yes, or a relative path.
func (f *plainField) set(text string) bool {
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
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.String && !f.path:
		v.Set(reflect.Append(v, reflect.ValueOf(text)))
		return true
	case kind == reflect.String && f.path:
		v.SetString(text)
		return filepath.IsAbs(text)
	case kind == reflect.String:
		v.SetString(text)
		return true
	}
	return false
}
