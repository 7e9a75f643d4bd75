package skills

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/discovery/describe"
	"github.com/execagent/execagent/internal/discovery/layout"
	"github.com/execagent/execagent/protocol"
)

// Bounds of an answer (capabilities.md 3.3).
const (
	maxFound     = 2048 // plugins and skills together; skills count with or without a plugin
	maxInstalled = 4 << 20
	maxWarnings  = 64

	// maxRead bounds the bytes of the files in all locations together. The files are parsed, and 512
	// locations of 16 MiB would take most of an hour.
	maxRead = 128 << 20
)

// Texts of warnings. They contain no path, because the sandbox decides which paths a client may
// learn.
const (
	warnLocations = "some capability locations could not be resolved; discovery may be incomplete"
	warnMetadata  = "some capability metadata could not be loaded; discovery may be incomplete"
	warnLimit     = "capability discovery size limit reached"
)

// Encoded is an answer in JSON.
type Encoded []byte

// AppendJSON appends the JSON of the answer.
func (e Encoded) AppendJSON(dst []byte) []byte { return append(dst, e...) }

// SizeHint returns the length of the JSON in bytes.
func (e Encoded) SizeHint() int { return len(e) }

// find reads all installed capabilities. Locations are found outside the sandbox, and read inside.
func (d *Discovery) find(ctx context.Context, owner string, s *protocol.Sandbox) (Encoded, error) {
	fs, err := d.cfg.Files(ctx, owner, s)
	if err != nil {
		return nil, err
	}
	release, err := d.cfg.Hold(ctx, owner, discovery.MaxBundle)
	if err != nil {
		return nil, err
	}
	defer release()
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

// tells reports whether a location that cannot be inspected causes a warning. A missing location
// causes none, and neither does a location that the policy denies.
func tells(failure *discovery.Warning, fs fsops.FS) bool {
	switch failure.Err {
	case nil, syscall.ENOENT, syscall.ENOTDIR:
		return false
	case syscall.EACCES:
		return fs == fsops.FS(fsops.Host{})
	}
	return true
}

// installedList collects an answer entry by entry, within its bounds.
type installedList struct {
	plugins, skills list
	found           int // number of plugins and skills
	bytes           int
	incomplete      bool // not all locations could be resolved
	unread          int  // number of locations that could not be read completely
	full            bool // an entry was left out
}

// list has the encoded entries of one member of the answer.
type list struct {
	open string
	bytes.Buffer
}

// add adds the capabilities of one location.
func (a *installedList) add(l *discovery.Location, found *discovery.Root) {
	d := found.Describe(l.Path)
	isPlugin := l.Version != ""
	if len(found.Warnings)+len(d.Refused) > 0 || isPlugin && (!d.IsPlugin || found.Missing) {
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

// room returns how many of n more plugins and skills may be added.
func (a *installedList) room(n int) int {
	if n > maxFound-a.found {
		a.full = true
		return maxFound - a.found
	}
	return n
}

// put adds an entry that counts as n plugins and skills, if it fits.
func (a *installedList) put(to *list, entry any, n int) {
	before := to.Len()
	if before > 0 {
		to.WriteByte(',')
	}
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	if enc.Encode(entry) != nil { // values of these types can always be encoded
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
	return append(appendWarnings(out, warnings), '}')
}

// openWarnings begins the last member of an answer. It is nowhere else in the answer, because strings in
// JSON have a backslash before each quote.
const openWarnings = `],"warnings":[`

func appendWarnings(dst []byte, warnings []string) []byte {
	dst = append(dst, openWarnings...)
	for i, w := range warnings {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, '"'), w...), '"')
	}
	return append(dst, ']')
}

// cutWarnings returns an answer of encode up to its warnings, and the warnings.
func (e Encoded) cutWarnings() (before []byte, warnings []string, err error) {
	at := bytes.LastIndex(e, []byte(openWarnings))
	if at < 0 {
		return nil, nil, errors.New("an answer without warnings")
	}
	list := e[at+len(openWarnings)-1 : len(e)-1]
	return e[:at:at], warnings, json.Unmarshal(list, &warnings)
}

func pluginFiles(p *discovery.Plugin) protocol.PluginFiles {
	file := func(f *discovery.File) *protocol.DiscoveredFile {
		if f == nil {
			return nil
		}
		return &protocol.DiscoveredFile{Path: protocol.NewPathURI(f.Path), Contents: f.Contents}
	}
	servers := p.MCP
	if inline, ok := layout.Inline(p.Manifest.Contents); ok {
		servers = &discovery.File{Path: p.Manifest.Path, Contents: inline}
	}
	return protocol.PluginFiles{Manifest: *file(&p.Manifest), MCPConfig: file(servers), AppsConfig: file(p.Apps)}
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

// optional returns nil for an empty text, which is null in JSON.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
