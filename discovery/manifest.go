package discovery

import (
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/protocol/strict"
)

// declarations are what a plugin.json says of other files: where they are, by members
// that are texts; members of other types are nil. With inlineMCP the servers are in the
// manifest itself.
type declarations struct {
	mcp, apps *string
	inlineMCP bool
}

// UnmarshalObject reads them.
func (d *declarations) UnmarshalObject(o *strict.Object) {
	text := func(name string) (value *string, object bool) {
		if !o.Has(name) {
			return nil, false
		}
		switch raw := o.Require(name); strict.TypeOf(raw) {
		case "string":
			return o.OptString(name), false
		case "map":
			return nil, true
		}
		return nil, false
	}
	d.mcp, d.inlineMCP = text("mcpServers")
	d.apps, _ = text("apps")
}

// declared returns where the files that a manifest declares are: by its members, or by
// their usual names. "" stands for no file.
func (r *reader) declared(of *File) (mcp, apps string) {
	var d declarations
	// A manifest that does not decode declares nothing.
	if strict.Unmarshal([]byte(of.Contents), &d) != nil {
		d = declarations{}
	}
	if !d.inlineMCP {
		mcp = r.below(of.Path, "mcpServers", d.mcp, mcpFile)
	}
	return mcp, r.below(of.Path, "apps", d.apps, appsFile)
}

// below returns the path of the file that a member of a manifest declares. The text is
// taken as it is: only the names . and .. mean something in it.
func (r *reader) below(manifest, member string, declared *string, usual string) string {
	usual = path.Join(r.root, usual)
	if declared == nil {
		return usual
	}
	rest, ok := strings.CutPrefix(*declared, "./")
	if !ok {
		r.out.Warnings = append(r.out.Warnings, Warning{Trouble: NotDotSlash, Path: manifest, Member: member})
		return usual
	}
	names := strings.FieldsFunc(rest, func(c rune) bool { return c == '/' || c == '\\' })
	if file := path.Join(r.root, rest); !slices.Contains(names, "..") && file != r.root {
		return file
	}
	r.out.Warnings = append(r.out.Warnings, Warning{Trouble: Outside, Path: manifest, Member: member})
	return usual
}
