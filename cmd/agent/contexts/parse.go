package contexts

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// parse reads the text. Its error is the first one in the file, with the line.
func (f *File) parse(text string) error {
	f.text = text
	if !utf8.ValidString(text) {
		return fmt.Errorf("%s is not UTF-8", f.Path)
	}
	p := parser{file: f}
	var top map[string]toml.Primitive
	meta, err := toml.Decode(text, &top)
	if err != nil {
		return p.syntax(err)
	}
	p.meta = meta
	p.top(top)
	if p.err != nil {
		return p.err
	}
	slices.SortFunc(f.Contexts, func(a, b Context) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// parser walks through the values of a document.
type parser struct {
	file *File
	meta toml.MetaData
	line int // of err
	err  error
}

// syntax says where the decoder has stopped. Why would quote the text, which may be that of
// a token.
func (p *parser) syntax(err error) error {
	at, ok := errors.AsType[toml.ParseError](err)
	switch {
	case !ok:
		return fmt.Errorf("%s is not TOML", p.file.Path)
	case at.LastKey == "":
		return fmt.Errorf("%s:%d: not TOML", p.file.Path, at.Position.Line)
	}
	return fmt.Errorf("%s:%d: not TOML, after the key %s", p.file.Path, at.Position.Line, at.LastKey)
}

// fail notes an error about a value, unless there is one above it in the file.
func (p *parser) fail(at toml.Primitive, format string, args ...any) {
	line := 0 // for a table that is only named as part of others
	if place, ok := errors.AsType[toml.ParseError](p.meta.PrimitiveDecode(at, &refusing{})); ok {
		line = place.Position.Line
	}
	if p.err == nil || line < p.line {
		p.line = line
		p.err = fmt.Errorf("%s:%d: %w", p.file.Path, max(line, 1), fmt.Errorf(format, args...))
	}
}

// refusing takes no value: the decoder's error then says where the value is.
type refusing struct{}

func (*refusing) UnmarshalTOML(any) error { return errors.New("refused") }

// taking takes any value.
type taking struct{ value any }

func (t *taking) UnmarshalTOML(value any) error {
	t.value = value
	return nil
}

// value returns the value of a key, which has to be a V.
func value[V any](p *parser, key, want string, at toml.Primitive) (v V, ok bool) {
	var t taking
	_ = p.meta.PrimitiveDecode(at, &t) // it takes everything
	if v, ok = t.value.(V); !ok {
		p.fail(at, "%s is not %s", key, want)
	}
	return v, ok
}

// table returns the values of a table.
func (p *parser) table(key string, at toml.Primitive) (values map[string]toml.Primitive) {
	if _, ok := value[map[string]any](p, key, "a table", at); ok {
		_ = p.meta.PrimitiveDecode(at, &values) // it is a table
	}
	return values
}

func (p *parser) text(to *string, key string, at toml.Primitive) {
	text, ok := value[string](p, key, "a string", at)
	if ok && text == "" {
		p.fail(at, "%s is empty", key)
	}
	*to = text
}

func (p *parser) words(to *[]string, key string, at toml.Primitive) {
	const want = "an array of strings"
	list, ok := value[[]any](p, key, want, at)
	if !ok {
		return
	}
	if len(list) == 0 {
		p.fail(at, "%s is empty", key)
	}
	for _, element := range list {
		word, ok := element.(string)
		if !ok {
			p.fail(at, "%s is not %s", key, want)
			return
		}
		*to = append(*to, word)
	}
}

func (p *parser) top(values map[string]toml.Primitive) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch at := values[key]; key {
		case "current":
			p.text(&p.file.Current, key, at)
		case "contexts":
			for name, at := range p.table(key, at) {
				p.context(name, at)
			}
		default:
			p.fail(at, "unknown key %.64q: current and contexts are known", key)
		}
	}
	if at, ok := values["current"]; ok && p.err == nil && p.file.index(p.file.Current) < 0 {
		p.fail(at, "current names the context %.*q, which is not there", maxName, p.file.Current)
	}
	if len(p.file.Contexts) > maxContexts {
		p.fail(values["contexts"], "more than %d contexts", maxContexts)
	}
}

func (p *parser) context(name string, at toml.Primitive) {
	if !ValidName(name) {
		p.fail(at, "context %.*q: a name is 1 to %d of A-Z a-z 0-9 . _ - and begins with a letter or a digit", maxName, name, maxName)
		return
	}
	c := Context{Name: name}
	before := p.err
	for key, at := range p.table("context "+name, at) {
		switch key {
		case "url":
			p.text(&c.URL, key, at)
		case "registry":
			p.text(&c.Registry, key, at)
		case "environment_id":
			p.text(&c.EnvironmentID, key, at)
		case "token_file":
			p.text(&c.TokenFile, key, at)
		case "tls_ca":
			p.text(&c.TLSCA, key, at)
		case "tls_cert":
			p.text(&c.TLSCert, key, at)
		case "tls_key":
			p.text(&c.TLSKey, key, at)
		case "tls_server_name":
			p.text(&c.TLSServerName, key, at)
		case "token_command":
			p.words(&c.TokenCommand, key, at)
		case "token":
			p.text(&c.token, key, at)
		default:
			p.fail(at, "unknown key %.64q: url, registry, environment_id, token, token_file, token_command, tls_ca, tls_cert, tls_key and tls_server_name are known", key)
		}
	}
	if p.err == before {
		if err := c.check(); err != nil {
			p.fail(at, "context %s: %w", name, err)
		}
	}
	p.file.Contexts = append(p.file.Contexts, c)
}

// printable tells whether a text is one line of characters that can be shown.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}
