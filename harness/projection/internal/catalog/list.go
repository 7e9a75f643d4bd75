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
	// maxRendered is how large the list for the model may be, in bytes. What it does not hold is
	// counted at its end.
	maxRendered = 64 << 10
)

// Config says which skills count, and how they are read.
type Config struct {
	// Enabled tells which installed plugins count; nil: none. Skills of selected roots, and
	// installed ones that belong to no plugin, always do.
	Enabled func(plugin string) bool
	// Sandbox confines what is read in an environment; nil: nothing does.
	Sandbox func(environmentID string) *protocol.Sandbox
}

// Cache makes lists, and remembers what the files of the roots of the last one say. Its methods
// may be called at once.
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

// described is what was made of a [capability.Found].
type described struct {
	skills     []describe.DescribedSkill
	incomplete bool
}

// List is the skills of one step, by the clients of that step. Its methods may be called at once.
type List struct {
	cfg      *Config
	skills   []*Skill
	packages map[string]*Skill
	aliases  []string // of roots: what e0, e1, … stand for
	warnings []string
}

// Skill is a skill that a model can use.
type Skill struct {
	Name        string // NAMESPACE:NAME, where it has a namespace
	Description string
	// Package names it, and Authority is the id of the root that it was found in, or of the
	// plugin.
	Package, Authority string
	// Hidden: it is not shown to the model, but can be read by those who ask for it.
	Hidden bool

	short     string // the package, with an alias if it has one
	selected  bool   // it is in a selected root
	root      int    // which of the aliases stands for that one
	installed []installation
}

// installation is a place where a skill is.
type installation struct {
	environment  string
	client       *client.Client
	folder       string
	instructions *string // what SKILL.md contains, where that is known
}

// EnvironmentHas reports whether a skill of that name is there, with or without its namespace.
func (l *List) EnvironmentHas(environmentID, name string) bool {
	return slices.ContainsFunc(l.skills, func(s *Skill) bool {
		return (s.Name == name || strings.HasSuffix(s.Name, ":"+name)) &&
			slices.ContainsFunc(s.installed, func(i installation) bool { return i.environment == environmentID })
	})
}

// Skills returns all skills in order. The caller may not change them.
func (l *List) Skills() []*Skill { return l.skills }

// Warnings say what is wrong with skills, for people.
func (l *List) Warnings() []string { return l.warnings }

// List makes the list of what a step has: first what is in its roots, then what is installed.
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

// keep forgets the roots that a step does not have: they may be read anew, and are large.
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
		// An executor may tell of files elsewhere: what only begins like the root would get an
		// alias that is, or becomes, that of another root.
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
	d = described{what.Skills, what.Incomplete}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[found] = d
	return d
}

// file returns a file by its native path; nil if it has none.
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

// add adds a skill, or one more place where it is: the first one says what it is like.
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

// locator names a folder of a root.
func locator(id, folder string) string {
	return scheme + url.PathEscape(id) + strings.TrimPrefix(protocol.NewPathURI(folder).String(), "file://")
}

const scheme = "skill://"

// Render returns the list for the model, "" without any skill. The same skills give the same
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

// noTags makes texts unable to end the section that they are in, or to begin one, however a model
// reads tags: in capitals, with blanks, cut short.
var noTags = strings.NewReplacer("<", "‹", ">", "›")

// line makes one line of a text that somebody else has written.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1 // also those that change the direction of what follows
		}
		return r
	}, text)
	text = noTags.Replace(text)
	if utf8.RuneCountInString(text) > maxDescription {
		text = string([]rune(text)[:maxDescription-1]) + "…"
	}
	return text
}
