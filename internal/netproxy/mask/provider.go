package mask

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/textproto"
	"slices"
	"strings"
)

// A Provider describes one kind of credential: which variables hold it, its shape, which
// destinations may receive it, and in which header (network.md 8.2).
type Provider struct {
	Env              []string // names of variables
	Patterns         []string // regular expressions; each must match a whole value
	URLPrefixes      []string
	URLPrefixFromEnv string   // a variable that has one more URL prefix, or ""
	Auth             []string // bearer, token, basic, header; empty: bearer
	Header, Prefix   string   // for Auth header: the header, and the text before the credential in it
}

// Check returns an error if the provider is invalid in every environment.
func (p Provider) Check() error {
	anywhere := func(string) string { return "https://localhost" } // for URLPrefixFromEnv
	_, err := newFamily("provider", p, nil, anywhere)
	return err
}

// A binding says to which destinations, and in which header, credentials of one provider are
// restored.
type binding struct {
	places               []destination
	bearer, token, basic bool
	header, prefix       string
}

// A family is a checked provider with the variables that hold its credentials.
type family struct {
	env    []string
	shapes []*shape
	bound  *binding
	// built is true for a built-in family. Its values are masked in all variables, and their
	// placeholders begin with the prefix of the value.
	built   bool
	hide    bool // values that cannot be masked are removed
	prefix  []string
	without []string // prefixes of values that belong to other services
}

// custom checks providers. It ignores an invalid provider, and logs the reason. If hide is true,
// values that cannot be masked are removed from the environment, also those in the variables of an
// invalid provider.
func custom(providers map[string]Provider, hide bool, taken map[string]bool, lookup func(string) string, log *slog.Logger) []*family {
	var families []*family
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		f, err := newFamily(name, providers[name], taken, lookup)
		if err != nil {
			log.Warn("a provider of credentials is ignored", "provider", name, "error", err)
			if !hide {
				continue
			}
			others := slices.DeleteFunc(slices.Clone(providers[name].Env), func(env string) bool { return taken[env] })
			f = &family{env: others}
		}
		f.hide = hide
		for _, env := range f.env {
			taken[env] = true
		}
		families = append(families, f)
	}
	return families
}

func newFamily(name string, p Provider, taken map[string]bool, lookup func(string) string) (*family, error) {
	switch {
	case name == "":
		return nil, errors.New("it has no name")
	case len(p.Env) == 0:
		return nil, errors.New("it names no variable")
	case len(p.Patterns) == 0:
		return nil, errors.New("it has no pattern")
	case len(p.URLPrefixes) == 0 && p.URLPrefixFromEnv == "":
		return nil, errors.New("it has no destination")
	}
	f := &family{env: p.Env, bound: &binding{}}
	for _, env := range p.Env {
		if env == "" || strings.ContainsAny(env, "=\x00") {
			return nil, fmt.Errorf("%q is not the name of a variable", env)
		}
		if taken[env] {
			return nil, fmt.Errorf("variable %s belongs to an earlier provider", env)
		}
	}
	for _, pattern := range p.Patterns {
		s, err := newShape(pattern)
		if err != nil {
			return nil, err
		}
		f.shapes = append(f.shapes, s)
	}
	for _, text := range p.URLPrefixes {
		at, err := parsePlace(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		f.bound.places = append(f.bound.places, at)
	}
	if p.URLPrefixFromEnv != "" {
		if text := lookup(p.URLPrefixFromEnv); text != "" {
			at, err := parsePlace(text)
			if err != nil {
				return nil, fmt.Errorf("variable %s: %w", p.URLPrefixFromEnv, err) // without its value
			}
			f.bound.places = append(f.bound.places, at)
		}
	}
	if len(f.bound.places) == 0 {
		return nil, fmt.Errorf("variable %s, its only destination, is not set", p.URLPrefixFromEnv)
	}
	return f, f.bound.show(p)
}

// show copies from a provider how a credential is sent.
func (b *binding) show(p Provider) error {
	if len(p.Auth) == 0 {
		b.bearer = true
	}
	for _, word := range p.Auth {
		switch word {
		case "bearer":
			b.bearer = true
		case "token":
			b.token = true
		case "basic":
			b.basic = true
		case "header":
			if !mayCarry(p.Header) {
				return fmt.Errorf("header %q cannot carry a credential", p.Header)
			}
			if !isFieldValue(p.Prefix) {
				return errors.New("the prefix cannot stand in a header")
			}
			b.header, b.prefix = textproto.CanonicalMIMEHeaderKey(p.Header), p.Prefix
		default:
			return fmt.Errorf("auth %q is not one of bearer, token, basic, header", word)
		}
	}
	return nil
}

// framing are fields that control where a message ends or goes, and cookies. These fields are never
// rewritten.
var framing = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade", "Expect", "Cookie"}

// mayCarry reports whether a field can carry a credential.
func mayCarry(field string) bool {
	if field == "" || slices.Contains(framing, textproto.CanonicalMIMEHeaderKey(field)) {
		return false
	}
	for _, c := range []byte(field) {
		if !strings.ContainsRune(alphanumeric+"!#$%&'*+-.^_`|~", rune(c)) || c >= 0x80 {
			return false
		}
	}
	return true
}

// isFieldValue reports whether a text can be a part of the value of a header.
func isFieldValue(text string) bool {
	for _, c := range []byte(text) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
