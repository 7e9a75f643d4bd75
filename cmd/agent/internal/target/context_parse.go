package target

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/tomlfile"
)

// parse reads the text. It returns the first error in the file, with its line.
func (f *ContextFile) parse(text string) error {
	f.text = text
	d, top, err := tomlfile.Parse(f.Path, text)
	if err != nil {
		return err
	}
	p := parser{d, f}
	p.top(top)
	if err := p.Err(); err != nil {
		return err
	}
	sort.Slice(f.Contexts, func(i, j int) bool { return f.Contexts[i].Name < f.Contexts[j].Name })
	return nil
}

// parser walks through the values of a document.
type parser struct {
	*tomlfile.Document

	file *ContextFile
}

func (p *parser) text(to *string, key string, at tomlfile.Value) {
	text, ok := tomlfile.As[string](p.Document, key, "a string", at)
	if ok && text == "" {
		p.Fail(at, "%s is empty", key)
	}
	*to = text
}

func (p *parser) words(to *[]string, key string, at tomlfile.Value) {
	const want = "an array of strings"
	list, ok := tomlfile.As[[]any](p.Document, key, want, at)
	if !ok {
		return
	}
	if len(list) == 0 {
		p.Fail(at, "%s is empty", key)
	}
	for _, element := range list {
		word, ok := element.(string)
		if !ok {
			p.Fail(at, "%s is not %s", key, want)
			return
		}
		*to = append(*to, word)
	}
}

func (p *parser) top(values map[string]tomlfile.Value) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch at := values[key]; key {
		case "current":
			p.text(&p.file.Current, key, at)
		case "contexts":
			for name, at := range p.Table(key, at) {
				p.context(name, at)
			}
		default:
			if !cli.KnownKey(key) { // package cli reads the options of commands
				p.Fail(at, "unknown key %.64q: use current, contexts, or the table of a command such as [exec]", key)
			}
		}
	}
	if at, ok := values["current"]; ok && p.Err() == nil && p.file.index(p.file.Current) < 0 {
		p.Fail(at, "current names the context %.*q, which does not exist", maxName, p.file.Current)
	}
	if len(p.file.Contexts) > maxContexts {
		p.Fail(values["contexts"], "more than %d contexts", maxContexts)
	}
}

func (p *parser) context(name string, at tomlfile.Value) {
	if !ValidContextName(name) {
		p.Fail(at, "context %.*q is not a valid name: use 1 to %d of A-Z a-z 0-9 . _ - and begin with a letter or a digit", maxName, name, maxName)
		return
	}
	c := Context{Name: name}
	texts := map[string]*string{
		"url": &c.URL, "registry": &c.Registry, "environment_id": &c.EnvironmentID, "transport": &c.Transport,
		"token": &c.token, "token_file": &c.TokenFile,
		"tls_ca": &c.TLSCA, "tls_cert": &c.TLSCert, "tls_key": &c.TLSKey, "tls_server_name": &c.TLSServerName,
	}
	before := p.Err()
	for key, at := range p.Table("context "+name, at) {
		switch text := texts[key]; {
		case text != nil:
			p.text(text, key, at)
		case key == "token_command":
			p.words(&c.TokenCommand, key, at)
		default:
			p.Fail(at, "unknown key %.64q: use url, registry, environment_id, transport, token, token_file, token_command, tls_ca, tls_cert, tls_key or tls_server_name", key)
		}
	}
	if p.Err() == before {
		if err := c.check(); err != nil {
			p.Fail(at, "context %s: %w", name, err)
		}
	}
	p.file.Contexts = append(p.file.Contexts, c)
}

// printable reports whether a text is valid UTF-8 without control characters.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}
