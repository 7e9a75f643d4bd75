package discovery

import (
	"strings"

	"github.com/execagent/execagent/protocol/strict"
)

// manifest is what a plugin.json says of the plugin.
type manifest struct {
	name        string
	displayName string // without white space around it
}

// UnmarshalObject reads the members that count; the others may be anything.
func (m *manifest) UnmarshalObject(o *strict.Object) {
	if name := o.OptString("name"); name != nil {
		m.name = *name
	}
	o.OptIn("interface", func(o *strict.Object) {
		if name := o.OptString("displayName"); name != nil {
			m.displayName = strings.TrimSpace(*name)
		}
	})
}
