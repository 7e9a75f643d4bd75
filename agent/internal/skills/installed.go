package skills

import (
	"bytes"
	"context"
	"encoding/json"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/discovery/describe"
	"github.com/execagent/execagent/protocol"
)

// Bounds of an answer (capabilities.md 3.3).
const (
	maxFound     = 2048 // plugins, and skills of plugins or none
	maxInstalled = 4 << 20
	maxWarnings  = 64

	// maxRead is how many bytes all locations together may have. What they say is parsed, and
	// 512 locations of 16 MiB would take most of an hour.
	maxRead = 128 << 20
)

// Texts of warnings. None has a path: what may be told of a path depends on the sandbox.
const (
	warnLocations = "some capability locations could not be resolved; discovery may be incomplete"
	warnMetadata  = "some capability metadata could not be loaded; discovery may be incomplete"
	warnLimit     = "capability discovery size limit reached"
)

// Encoded is an answer as the JSON that it is remembered as.
type Encoded []byte

// AppendJSON appends the answer.
func (e Encoded) AppendJSON(dst []byte) []byte { return append(dst, e...) }

// SizeHint is how many bytes the JSON takes.
func (e Encoded) SizeHint() int { return len(e) }

// find reads all that is installed. Locations are found outside the sandbox, and read
// inside.
func (d *Discovery) find(ctx context.Context, s *protocol.Sandbox) (Encoded, error) {
	fs, err := d.cfg.Files(ctx, s)
	if err != nil {
		return nil, err
	}
	locations, incomplete := d.places.Locations()
	a := installedList{plugins: list{open: `{"plugins":[`}, skills: list{open: `],"skills":[`}, incomplete: incomplete}
	left := maxRead
	for _, l := range locations {
		found, err := read(ctx, fs, l.Path)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			left -= found.Size()
		}
		if left < 0 {
			a.full = true
			break
		}
		switch {
		case err != nil:
			a.unread++
		case found.Failure != nil:
			if tells(found.Failure, fs) {
				a.unread++
			}
		default:
			a.add(&l, found)
		}
	}
	return a.encode(), nil
}

// tells reports whether a location that cannot be inspected is worth a warning. One that
// is missing is none, and neither is one that the policy denies.
func tells(failure *discovery.Warning, fs fsops.FS) bool {
	switch failure.Err {
	case nil, syscall.ENOENT, syscall.ENOTDIR:
		return false
	case syscall.EACCES:
		return fs == fsops.FS(fsops.Host{})
	}
	return true
}

// installedList grows entry by entry, within its bounds.
type installedList struct {
	plugins, skills list
	found           int // plugins and skills
	bytes           int
	incomplete      bool // of the locations
	unread          int  // locations of which something could not be read
	full            bool // an entry was left out
}

// list is the entries of a member, encoded.
type list struct {
	open string
	bytes.Buffer
}

// add adds what is in a location.
func (a *installedList) add(l *discovery.Location, found *discovery.Root) {
	d := found.Describe(l.Path)
	isPlugin := l.Version != ""
	if d.Incomplete || isPlugin && !d.IsPlugin {
		a.unread++
	}
	if !isPlugin {
		root := &protocol.DiscoveryRoot{ID: l.ID, Path: protocol.NewPathURI(l.Path)}
		for i := range d.Skills {
			if a.room(1) == 0 {
				return
			}
			skill := installedSkill(&d.Skills[i])
			skill.DiscoveryRoot = root
			a.put(&a.skills, skill, 1)
		}
		return
	}
	if !d.IsPlugin || a.room(1) == 0 {
		return
	}
	plugin := protocol.InstalledPlugin{
		ID: l.ID, DisplayName: d.DisplayName, RemotePluginID: optional(l.RemoteID), Version: l.Version,
		Root: protocol.NewPathURI(l.Path), Files: pluginFiles(found.Plugin), Skills: []protocol.InstalledSkill{},
	}
	for i := range d.Skills[:a.room(1+len(d.Skills))-1] {
		plugin.Skills = append(plugin.Skills, installedSkill(&d.Skills[i]))
	}
	a.put(&a.plugins, plugin, 1+len(plugin.Skills))
}

// room returns how many of n more may be found.
func (a *installedList) room(n int) int {
	if n > maxFound-a.found {
		a.full = true
		return maxFound - a.found
	}
	return n
}

// put adds an entry with n plugins and skills, if it fits.
func (a *installedList) put(to *list, entry any, n int) {
	before := to.Len()
	if before > 0 {
		to.WriteByte(',')
	}
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	if enc.Encode(entry) != nil { // no value of these types fails
		to.Truncate(before)
		return
	}
	to.Truncate(to.Len() - 1) // the line end
	if a.bytes+to.Len()-before > maxInstalled {
		to.Truncate(before)
		a.full = true
		return
	}
	a.bytes += to.Len() - before
	a.found += n
}

func (a *installedList) encode() Encoded {
	var warnings []string
	if a.full {
		warnings = append(warnings, warnLimit)
	}
	if a.incomplete {
		warnings = append(warnings, warnLocations)
	}
	for range min(a.unread, maxWarnings-len(warnings)) {
		warnings = append(warnings, warnMetadata)
	}
	out := append([]byte(a.plugins.open), a.plugins.Bytes()...)
	out = append(append(out, a.skills.open...), a.skills.Bytes()...)
	out = append(out, `],"warnings":[`...)
	for i, w := range warnings {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), w...), '"')
	}
	return append(out, `]}`...)
}

func pluginFiles(p *discovery.Plugin) protocol.PluginFiles {
	file := func(f *discovery.File) *protocol.DiscoveredFile {
		if f == nil {
			return nil
		}
		return &protocol.DiscoveredFile{Path: protocol.NewPathURI(f.Path), Contents: f.Contents}
	}
	return protocol.PluginFiles{Manifest: *file(&p.Manifest), MCPConfig: file(p.MCP), AppsConfig: file(p.Apps)}
}

func installedSkill(s *describe.DescribedSkill) protocol.InstalledSkill {
	out := protocol.InstalledSkill{
		Name: s.Name, Description: s.Description, ShortDescription: optional(s.ShortDescription), Path: protocol.NewPathURI(s.Path),
	}
	if len(s.Tools) > 0 {
		out.Dependencies = &protocol.SkillDependencies{Tools: make([]protocol.SkillTool, len(s.Tools))}
		for i, t := range s.Tools {
			out.Dependencies.Tools[i] = protocol.SkillTool{
				Type: t.Type, Value: t.Value, Description: optional(t.Description), Transport: optional(t.Transport),
				Command: optional(t.Command), URL: optional(t.URL), OAuthCallbackPort: t.OAuthCallbackPort,
			}
		}
	}
	if p := s.Policy; p != nil {
		out.Policy = &protocol.SkillPolicy{AllowImplicitInvocation: p.AllowImplicitInvocation, Products: p.Products}
	}
	return out
}

// optional is a text, null where it is empty.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
