// Package tomlfile reads TOML files with settings. [Read] refuses a file that other users can write,
// and [Parse] returns the values of a [Document], whose errors name the line.
package tomlfile

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/execagent/execagent/internal/tomltext"
)

// maxNesting bounds the nesting of brackets and dotted keys.
const maxNesting = 8

// Value is a value in a document that is not decoded yet.
type Value = toml.Primitive

// Document is a file that is being read. It keeps the first error in it.
type Document struct {
	path string
	meta toml.MetaData
	line int // of err
	err  error
}

// Parse returns the values of a text, by key. No error quotes the text, because it may be a secret.
func Parse(path, text string) (*Document, map[string]Value, error) {
	switch {
	case !utf8.ValidString(text):
		return nil, nil, fmt.Errorf("%s is not UTF-8", path)
	case tomltext.Nesting(text) > maxNesting:
		return nil, nil, fmt.Errorf("%s is nested deeper than %d", path, maxNesting)
	}
	d := &Document{path: path}
	var values map[string]Value
	meta, err := toml.Decode(text, &values)
	d.meta = meta
	if err == nil {
		return d, values, nil
	}
	at, ok := errors.AsType[toml.ParseError](err)
	switch {
	case !ok:
		err = fmt.Errorf("%s is not TOML", path)
	case strings.HasSuffix(at.Message, "has already been defined."):
		err = fmt.Errorf("%s:%d: this table or key is defined twice", path, at.Position.Line)
	case at.LastKey == "" || at.Position.Line <= 1: // a token that ends with = counts as a key, too
		err = fmt.Errorf("%s:%d: not TOML", path, at.Position.Line)
	default:
		err = fmt.Errorf("%s:%d: not TOML, after the key %s", path, at.Position.Line, at.LastKey)
	}
	return nil, nil, err
}

// Err returns the first error in the file.
func (d *Document) Err() error { return d.err }

// Fail records an error about a value, unless the document has an error on the same line or above.
func (d *Document) Fail(at Value, format string, args ...any) {
	line := d.Line(at)
	if d.err == nil || line < d.line {
		d.line = line
		d.err = fmt.Errorf("%s:%d: %w", d.path, max(line, 1), fmt.Errorf(format, args...))
	}
}

// Line returns the line of a value, or 0 for a table that is named only as part of other tables.
func (d *Document) Line(at Value) int {
	if place, ok := errors.AsType[toml.ParseError](d.meta.PrimitiveDecode(at, &refusing{})); ok {
		return place.Position.Line
	}
	return 0
}

// Any returns a value as the decoder returns it: a string, an int64, a bool, a []any, a
// map[string]any and so on.
func (d *Document) Any(at Value) any {
	var t taking
	_ = d.meta.PrimitiveDecode(at, &t) // taking accepts every value
	return t.value
}

// Table returns the values of a table.
func (d *Document) Table(key string, at Value) (values map[string]Value) {
	if _, ok := As[map[string]any](d, key, "a table", at); ok {
		_ = d.meta.PrimitiveDecode(at, &values) // As has checked that it is a table
	}
	return values
}

// As returns the value of a key, which must be a V. want describes V in the error.
func As[V any](d *Document, key, want string, at Value) (v V, ok bool) {
	if v, ok = d.Any(at).(V); !ok {
		d.Fail(at, "%s is not %s", key, want)
	}
	return v, ok
}

// refusing accepts no value, because the decoder's error then has the line of the value.
type refusing struct{}

func (*refusing) UnmarshalTOML(any) error { return errors.New("refused") }

// taking accepts any value.
type taking struct{ value any }

func (t *taking) UnmarshalTOML(value any) error {
	t.value = value
	return nil
}
