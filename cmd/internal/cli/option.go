package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Option is an option of a command.
type Option struct {
	Name    string
	Type    reflect.Type
	Env     []string // its variables; the first one that is set is used
	Default string
	Enum    []string // nil: any value
	Path    bool     // a path, or several paths
	Secret  bool     // its value is never shown
}

// fileOption names the user's file, so no file can set it.
const fileOption = "config"

// Settable reports whether a file can set the option.
func (o *Option) Settable() bool { return len(o.Env) > 0 && o.Name != fileOption }

// Value is the value of an option in a file.
type Value struct {
	Texts    []string // as on a command line; one text, unless the option is a list
	Path     string   // of the file
	Line     int
	Required bool // it overrides flags and variables
}

// Values are the values of the options of a command, by name.
type Values map[string]Value

// read converts a value from a file in folder. The error describes the expected value.
func (o *Option) read(raw any, folder string) (v Value, err error) {
	t := o.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	list := t.Kind() == reflect.Slice
	elements := []any{raw}
	if list {
		t = t.Elem()
		array, ok := raw.([]any)
		if !ok {
			return v, errors.New("an array of " + plural(t))
		}
		elements = array
	}
	for _, element := range elements {
		text, err := o.text(t, element, folder)
		if err != nil && list {
			return v, errors.New("an array of " + plural(t))
		}
		if err != nil {
			return v, err
		}
		v.Texts = append(v.Texts, text)
	}
	if set(reflect.New(o.Type).Elem(), v.Texts) != nil {
		return v, errors.New(expected(t))
	}
	return v, nil
}

// text returns one value in the form of a command line.
func (o *Option) text(t reflect.Type, raw any, folder string) (string, error) {
	wrong := errors.New(expected(t))
	switch raw := raw.(type) {
	case string:
		switch kind := t.Kind(); {
		case strings.ContainsRune(raw, 0):
			return "", errors.New("text without the character NUL")
		case o.Path:
			return resolve(raw, folder)
		case len(o.Enum) > 0 && !slices.Contains(o.Enum, raw):
			return "", fmt.Errorf("one of %s", strings.Join(slices.DeleteFunc(slices.Clone(o.Enum), func(e string) bool { return e == "" }), ", "))
		case kind == reflect.String || t == duration || reflect.PointerTo(t).Implements(unmarshaler):
			return raw, nil
		}
	case bool:
		if t.Kind() == reflect.Bool {
			return strconv.FormatBool(raw), nil
		}
	case int64:
		if t.Kind() != reflect.String && t.Kind() != reflect.Bool && t != duration {
			return strconv.FormatInt(raw, 10), nil
		}
	}
	return "", wrong
}

// resolve makes a path absolute. - stays, because it stands for standard input.
func resolve(path, folder string) (string, error) {
	rest, home := strings.CutPrefix(path, "~/")
	switch {
	case path == "":
		return "", errors.New("a path, but empty")
	case home:
		dir, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("known: %w", err)
		}
		return filepath.Join(dir, rest), nil
	case path == "-" || filepath.IsAbs(path):
		return path, nil
	}
	return filepath.Join(folder, path), nil
}

// expected describes the values of a type.
func expected(t reflect.Type) string {
	switch kind := t.Kind(); {
	case t == duration:
		return `a duration such as "30s" or "5m"`
	case reflect.PointerTo(t).Implements(unmarshaler):
		return `a number of bytes such as 65536 or "64K"`
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.String:
		return "a string"
	}
	return "a whole number in its range"
}

func plural(t reflect.Type) string {
	if t.Kind() == reflect.String {
		return "strings"
	}
	return "whole numbers"
}

// Set sets a field of the option's type.
func (v Value) Set(field reflect.Value) {
	_ = set(field, v.Texts) // reading the file has tried this
}

// set sets a field to the value that texts describe.
func set(field reflect.Value, texts []string) error {
	if field.Kind() != reflect.Slice {
		return parse(field, texts[0])
	}
	field.Set(reflect.MakeSlice(field.Type(), len(texts), len(texts)))
	for i, text := range texts {
		if err := parse(field.Index(i), text); err != nil {
			return err
		}
	}
	return nil
}
