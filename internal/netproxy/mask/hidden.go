package mask

import (
	"log/slog"
	"slices"
	"strings"
)

// Hidden are the credentials that an operator hides, for whoever has no broker: processes without a
// proxy, and requests that the operator's program sends itself. It is immutable and may be used
// concurrently.
type Hidden struct {
	host     values
	families []*family
}

// NewHidden returns the credentials of an operator's providers. environ is the environment of the
// operator's program.
func NewHidden(operator map[string]Provider, environ []string) *Hidden {
	h := &Hidden{host: valuesOf(environ)}
	h.families = custom(operator, true, map[string]bool{}, h.host.lookup, slog.New(slog.DiscardHandler))
	return h
}

// secretsOf returns the values of a family's variables.
func (f *family) secretsOf(all ...values) (s secrets) {
	for _, name := range f.env {
		for _, v := range all {
			for _, value := range v[name] {
				if value != "" {
					s.add(value)
				}
			}
		}
	}
	return s
}

// Environ returns an environment without the variables of the credentials, and without those that
// contain one. A placeholder in their place would be useless.
func (h *Hidden) Environ(environ []string) []string {
	own := valuesOf(environ)
	kept := slices.Clone(environ)
	for _, f := range h.families {
		s := f.secretsOf(h.host, own)
		kept = slices.DeleteFunc(kept, func(entry string) bool {
			name, value, _ := strings.Cut(entry, "=")
			return slices.Contains(f.env, name) || s.in(name) || s.in(value)
		})
	}
	return kept
}

// Allows reports whether a variable of the operator's program may go into a header of a request to a
// destination. Every variable may that holds none of the credentials.
func (h *Hidden) Allows(name string, to Destination) bool {
	value := h.host.lookup(name)
	for _, f := range h.families {
		if s := f.secretsOf(h.host); !slices.Contains(f.env, name) && !s.in(value) {
			continue
		}
		if f.bound == nil || !slices.ContainsFunc(f.bound.places, func(p destination) bool { return p.contains(to) }) {
			return false
		}
	}
	return true
}
