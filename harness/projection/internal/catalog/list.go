package catalog

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/internal/discovery/describe"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxDescription is how many characters of a description are listed.
	maxDescription = 1024
	// maxRendered bounds the list for the model, in bytes. Skills that do not fit are counted at
	// its end.
	maxRendered = 64 << 10
)

// Config says which skills are listed, and how they are read.
type Config struct {
	// Enabled reports whether the skills of an installed plugin are listed; nil: none are. Skills
	// of selected roots, and installed skills that belong to no plugin, are always listed.
	Enabled func(plugin string) bool
	// Sandbox returns the sandbox that confines reads in an environment; nil: reads are not
	// confined.
	Sandbox func(environmentID string) *protocol.Sandbox
}

// Cache makes lists. It keeps the descriptions of the roots of the last list. Its methods may be
// called concurrently.
type Cache struct {
	cfg Config

	mu    sync.Mutex
	known map[*capability.Found]described
}

// New returns an empty cache.
func New(cfg Config) *Cache {
	if cfg.Enabled == nil {
		cfg.Enabled = func(string) bool { return false }
	}
	return &Cache{cfg: cfg, known: map[*capability.Found]described{}}
}

// described has the descriptions of the skills of a [capability.Found].
type described struct {
	skills     []describe.DescribedSkill
	incomplete bool
}

// List has the skills of one step, which are read by the clients of that step. Its methods may be
// called concurrently.
type List struct {
	cfg      *Config
	skills   []*Skill
	packages map[string]*Skill
	aliases  []string // the roots for which e0, e1, … stand
	warnings []string
}

// Skill is a skill that a model can use.
type Skill struct {
	Name        string // NAMESPACE:NAME, where it has a namespace
	Description string
	// Package names the skill. Authority is the id of the root in which it was found, or of the
	// plugin.
	Package, Authority string
	// Hidden says that the skill is not shown to the model. It can still be read by its package.
	Hidden bool

	short     string // the package, with an alias if it has one
	selected  bool   // it is in a selected root
	root      int    // index of this root in the aliases
	installed []installation
}

// installation is a place where a skill is.
type installation struct {
	environment  string
	client       *client.Client
	folder       string
	instructions *string // the content of SKILL.md; nil: unknown
}

// EnvironmentHas reports whether an environment has a skill of this name, with or without its
// namespace.
func (l *List) EnvironmentHas(environmentID, name string) bool {
	return slices.ContainsFunc(l.skills, func(s *Skill) bool {
		return (s.Name == name || strings.HasSuffix(s.Name, ":"+name)) &&
			slices.ContainsFunc(s.installed, func(i installation) bool { return i.environment == environmentID })
	})
}

// Skills returns all skills in order. The caller may not change them.
func (l *List) Skills() []*Skill { return l.skills }

// Warnings returns the problems of skills, in words for people.
func (l *List) Warnings() []string { return l.warnings }

// List makes the list of the skills of a step: first those in its roots, then the installed ones.
func (c *Cache) List(view *capability.View) *List {
	l := &List{cfg: &c.cfg, packages: map[string]*Skill{}}
	for _, root := range view.Roots {
		if root.Found != nil && root.Err == nil && len(root.Skills) > 0 {
			c.root(l, &root)
		}
	}
	c.keep(view)
	for _, e := range view.Environments {
		if e.Installed == nil || e.Err != nil {
			continue
		}
		for _, plugin := range e.Plugins {
			if c.cfg.Enabled(plugin.ID) {
				for i := range plugin.Skills {
					l.installed(&e, plugin.ID, &plugin.Skills[i])
				}
			}
		}
		for i := range e.Installed.Skills {
			if from := e.Installed.Skills[i].DiscoveryRoot; from != nil {
				l.installed(&e, from.ID, &e.Installed.Skills[i])
			}
		}
	}
	return l
}

// keep drops the descriptions of roots that a step does not have, because they are large. They can
// be made again.
func (c *Cache) keep(view *capability.View) {
	has := map[*capability.Found]bool{}
	for _, root := range view.Roots {
		has[root.Found] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.known, func(found *capability.Found, _ described) bool { return !has[found] })
}

// root adds the skills of a selected root.
func (c *Cache) root(l *List, root *capability.RootView) {
	folder, err := root.Path.Native()
	if err != nil {
		return // no file could be read there
	}
	d := c.describe(root.Found, folder)
	if d.incomplete {
		l.warnings = append(l.warnings, fmt.Sprintf("root %.256q: a SKILL.md has no usable front matter", root.ID))
	}
	if len(d.skills) == 0 {
		return
	}
	base := locator(root.ID, folder)
	number := len(l.aliases)
	alias := fmt.Sprintf("e%d", number)
	l.aliases = append(l.aliases, base)
	contents := make(map[string]*string, len(root.Skills))
	for i := range root.Skills {
		if at, err := root.Skills[i].Instructions.Path.Native(); err == nil {
			contents[at] = &root.Skills[i].Instructions.Contents
		}
	}
	for _, skill := range d.skills {
		at := path.Dir(skill.Path)
		s := &Skill{
			Name: skill.Name, Description: skill.Description, Authority: root.ID, selected: true, root: number,
			Package: locator(root.ID, at), Hidden: hidden(skill.Policy),
		}
		s.short = s.Package
		// An executor may report files outside of the root. A path that only begins like the root
		// must not be shortened, because the result could be the alias of another root.
		if rest, ok := strings.CutPrefix(s.Package, strings.TrimSuffix(base, "/")); ok && (rest == "" || rest[0] == '/') {
			s.short = alias + strings.TrimSuffix(rest, "/")
		}
		l.add(s, installation{root.EnvironmentID, root.Client, at, contents[skill.Path]})
	}
}

func hidden(p *describe.SkillPolicy) bool {
	return p != nil && p.AllowImplicitInvocation != nil && !*p.AllowImplicitInvocation
}

// describe reads the files of a root, once.
func (c *Cache) describe(found *capability.Found, folder string) described {
	c.mu.Lock()
	d, ok := c.known[found]
	c.mu.Unlock()
	if ok {
		return d
	}
	var own *describe.File
	if found.Plugin != nil {
		own = file(&found.Plugin.Manifest)
	}
	var all []describe.Skill
	for i := range found.Skills {
		skill := &found.Skills[i]
		if instructions := file(&skill.Instructions); instructions != nil {
			all = append(all, describe.Skill{Instructions: *instructions, Metadata: file(skill.Metadata)})
		}
	}
	var namespaces []describe.File
	for i := range found.Namespaces {
		if manifest := file(&found.Namespaces[i]); manifest != nil {
			namespaces = append(namespaces, *manifest)
		}
	}
	what := describe.Root(folder, own, all, namespaces)
	d = described{what.Skills, len(what.Refused) > 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[found] = d
	return d
}

// file returns a file with its native path, or nil if the path is not native.
func file(f *protocol.DiscoveredFile) *describe.File {
	if f == nil {
		return nil
	}
	at, err := f.Path.Native()
	if err != nil {
		return nil
	}
	return &describe.File{Path: at, Contents: f.Contents}
}

// installed adds a skill that is installed in an environment.
func (l *List) installed(e *capability.EnvironmentView, authority string, skill *protocol.InstalledSkill) {
	at, err := skill.Path.Native()
	if err != nil {
		return
	}
	folder := path.Dir(at)
	s := &Skill{Name: skill.Name, Description: skill.Description, Authority: authority, Package: locator(authority, folder)}
	if p := skill.Policy; p != nil {
		s.Hidden = p.AllowImplicitInvocation != nil && !*p.AllowImplicitInvocation
	}
	s.short = s.Package
	l.add(s, installation{environment: e.EnvironmentID, client: e.Client, folder: folder})
}

// add adds a skill, or another place of a known skill. The first place determines the name and the
// description.
func (l *List) add(s *Skill, at installation) {
	if same := l.packages[s.Package]; same != nil {
		if same.selected == s.selected {
			same.installed = append(same.installed, at)
		}
		return
	}
	s.installed = []installation{at}
	l.packages[s.Package] = s
	if s.short != s.Package {
		l.packages[s.short] = s
	}
	l.skills = append(l.skills, s)
}

// locator returns the name of a folder of a root.
func locator(id, folder string) string {
	return scheme + url.PathEscape(id) + strings.TrimPrefix(protocol.NewPathURI(folder).String(), "file://")
}

const scheme = "skill://"

// Render returns the list for the model, or "" if no skill is shown. The same skills give the same
// text.
func (l *List) Render() string {
	var table, entries strings.Builder
	used, more := make([]bool, len(l.aliases)), 0
	for _, s := range l.skills {
		if s.Hidden {
			continue
		}
		entry, row := fmt.Sprintf("- %s: %s (executor package: %s)\n", line(s.Name), line(s.Description), s.short), ""
		if s.selected && !used[s.root] {
			row = fmt.Sprintf("- `e%d` = `%s`\n", s.root, l.aliases[s.root])
		}
		if table.Len()+entries.Len()+len(entry)+len(row) > maxRendered {
			more++
			continue
		}
		if s.selected {
			used[s.root] = true
		}
		table.WriteString(row)
		entries.WriteString(entry)
	}
	if entries.Len() == 0 {
		return ""
	}
	var out strings.Builder
	out.WriteString("## Skills of executors\n" +
		"A skill is a folder with instructions for a kind of task. When a task fits a description, read the\n" +
		"instructions with skills.read, by the package that is named there, before you begin.\n")
	if table.Len() > 0 {
		out.WriteString("### Roots\n" + table.String())
	}
	out.WriteString("### Available skills\n")
	out.WriteString(entries.String())
	if more > 0 {
		fmt.Fprintf(&out, "- and %d more: see skills.list\n", more)
	}
	return out.String()
}

// noTags replaces angle brackets, so that a text cannot end its section or begin another one. This
// works however leniently a model reads tags: in capitals, with blanks, cut short.
var noTags = strings.NewReplacer("<", "‹", ">", "›")

// line turns a text from another source into one line.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1 // including characters that change the direction of the following text
		}
		return r
	}, text)
	text = noTags.Replace(text)
	if utf8.RuneCountInString(text) > maxDescription {
		text = string([]rune(text)[:maxDescription-1]) + "…"
	}
	return text
}
