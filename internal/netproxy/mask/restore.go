package mask

import (
	"encoding/base64"
	"net/textproto"
	"strings"

	"github.com/execagent/execagent/internal/strictjson"
)

// Restore returns the value of one field of a request to a destination. It puts a credential in
// place of its placeholder if the provider of the credential allows the destination, the field, and
// the scheme or prefix before it. The placeholder must be the whole rest of the value. Every other
// value is returned unchanged, and so is a credential that the command has itself.
func (b *Broker) Restore(to Destination, field, value string) string {
	field = textproto.CanonicalMIMEHeaderKey(field)
	if field == "Authorization" {
		scheme, rest, ok := strings.Cut(value, " ")
		if ok {
			text := strings.Trim(rest, " ")
			switch strings.ToLower(scheme) {
			case "bearer":
				if c := b.credential(to, text, func(p *binding) bool { return p.bearer }); c != nil {
					return scheme + " " + c.value
				}
			case "token":
				if c := b.credential(to, text, func(p *binding) bool { return p.token }); c != nil {
					return scheme + " " + c.value
				}
			case "basic":
				if restored, ok := b.basic(to, text); ok {
					return scheme + " " + restored
				}
			}
		}
	}
	for placeholder := range b.byPlaceholder {
		if !strings.HasSuffix(value, placeholder) {
			continue
		}
		prefix := strings.TrimSuffix(value, placeholder)
		if c := b.credential(to, placeholder, func(p *binding) bool { return p.header == field && p.prefix == prefix }); c != nil {
			return prefix + c.value
		}
	}
	return value
}

// basic restores placeholders in the user and password of Basic authentication.
func (b *Broker) basic(to Destination, text string) (string, bool) {
	decoded, err := strictjson.StdBase64.Decode(text)
	if err != nil {
		return "", false
	}
	user, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return "", false
	}
	changed := false
	for _, part := range []*string{&user, &password} {
		// A credential with a colon cannot be the user, because the user ends at the colon.
		if c := b.credential(to, *part, func(p *binding) bool { return p.basic }); c != nil && (part == &password || !strings.Contains(c.value, ":")) {
			*part, changed = c.value, true
		}
	}
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password)), changed
}

// credential returns the credential of a placeholder, if one of its bindings satisfies shown and
// contains the destination.
func (b *Broker) credential(to Destination, placeholder string, shown func(*binding) bool) *credential {
	c := b.byPlaceholder[placeholder]
	if c == nil {
		return nil
	}
	for _, bound := range c.bindings {
		if !shown(bound) {
			continue
		}
		for i := range bound.places {
			if bound.places[i].contains(to) {
				return c
			}
		}
	}
	return nil
}
