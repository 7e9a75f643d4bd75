package view

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
)

// objectKind is the kind of object at a path, without following symlinks.
type objectKind uint8

const (
	absent objectKind = iota
	directory
	emptyDirectory // distinguished only at protected names
	file           // anything else
)

// sights are the facts about the file system that a plan depends on.
type sights struct {
	// kinds has the kinds of objects at the paths of the rules and at the
	// missing names. For an absent object, it also has the directories above,
	// up to the first existing one.
	kinds      map[string]objectKind
	globbed    []string // existing files that a glob denies, canonical
	crowded    []string // directories with too many such files, denied as a whole
	aliases    []string // other paths of private files, denied too
	sockets    []string // to cover where they can be seen but not written
	runtimeDir string   // /run/user/N, covered as the sockets in it; "" none
	resolver   bool     // the folders of nameServices are covered
	named      []string // sockets that the policy names, canonical
}

// action is what a step does to give a path its access.
type action uint8

const (
	// bindWrite and bindRead mount the object of the original root at the path,
	// where the view would not show the object or would show it with another
	// access.
	bindWrite action = iota
	bindRead
	// seal binds the view's object at the path onto itself, read-only.
	seal
	// pin binds the view's object at the path onto itself, only to make the path
	// a mount point. The kernel refuses to rename or remove a mount point
	// (EBUSY), so no process can move away a directory with a carve-out in it,
	// and forge another (sandbox.md 14.2).
	pin
	// deny covers the object with an empty one of mode 0.
	deny
	// hollow covers a directory with an empty read-only one of mode 0555.
	hollow
	// mute covers a socket with a file.
	mute
	// devices makes a private /dev.
	devices
	// procfs makes /proc, a fresh one or the one of the old root.
	procfs
)

// step makes one mount, or those of one pseudo file system.
type step struct {
	path string
	do   action
	// optional steps are left out if the view has nothing at the path, and their
	// mounts may be lost.
	optional bool
	// inside has the places that must exist in the file system of this step,
	// for mounting later steps on them.
	inside []spot
}

// keepsAccess reports whether the path has the access of the policy only while
// the mount of the step exists, and has to keep it. An optional step covers an
// object without a rule, or one that may be replaced.
func (s *step) keepsAccess() bool {
	switch s.do {
	case bindWrite, bindRead, seal, deny, hollow:
		return !s.optional
	}
	return false
}

// spot is a place for a mount in a file system of ours.
type spot struct {
	path string // absolute, in the view
	dir  bool
	link string // a symlink with this text, not a place
}

// viewPlan is a root directory to be built: the base, then the steps from the
// shallowest to the deepest, because each is mounted on the result of earlier
// ones.
type viewPlan struct {
	// base is the access of the root. With Write and Read the root shows the
	// original one; otherwise it is empty except for inside.
	base   sandbox.Access
	inside []spot
	steps  []step
}

// maskedSysfs are the hidden parts of /sys (sandbox.md 14.3).
var maskedSysfs = []string{
	"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware",
	"/sys/fs/bpf", "/sys/devices/virtual/powercap",
}

// accesses has the access of each path that has a rule.
type accesses map[string]sandbox.Access

// at returns the access to name: the longest prefix decides.
func (a accesses) at(name string) sandbox.Access {
	for {
		access, ok := a[name]
		if ok || name == "/" {
			return access
		}
		name = pathname.Parent(name)
	}
}

// above returns the access that name would have without a rule of its own.
func (a accesses) above(name string) sandbox.Access {
	return a.at(pathname.Parent(name))
}

// planner collects the steps of a plan.
type planner struct {
	accesses
	sights
	links   []sandbox.Link
	missing map[string]bool // names whose creation a placeholder prevents
	barred  map[string]bool // names that cannot be created anyway
	steps   map[string]*step
}

// planView returns the mounts that make the root look as the policy says
// (sandbox.md 14.2). It fails if no mounts could keep the policy.
func planView(r *resolve.Resolved, s sights) (*viewPlan, error) {
	p := &planner{accesses: effective(r.Policy.Rules), sights: s, links: r.Policy.Links,
		missing: map[string]bool{}, barred: map[string]bool{}, steps: map[string]*step{}}
	for _, m := range r.Missing {
		names := p.missing
		if m.Barred {
			names = p.barred
		}
		names[path.Join(m.Parent, m.Name)] = true
	}
	p.denyAliases()
	p.denyCrowded()
	p.coverRuntimeDir()
	p.showSockets()
	for _, name := range slices.Sorted(maps.Keys(p.accesses)) {
		if err := p.rule(name, p.accesses[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.missing)) {
		if err := p.placeholder(name); err != nil {
			return nil, err
		}
	}
	for _, name := range s.globbed {
		if p.at(name) >= sandbox.Read {
			p.steps[name] = &step{path: name, do: deny, optional: pathname.IsPseudo(name)}
		}
	}
	p.cover()
	p.pinAncestors()
	for name, s := range p.steps {
		s.optional = s.optional || r.Policy.Replaceable(name)
	}
	return p.plan(), nil
}

// effective returns the accesses of the rules, adapted to the parts that are
// the same in every view: its own /dev, and nothing writable in /proc and /sys.
func effective(rules []sandbox.Rule) accesses {
	a := accesses{}
	for _, rule := range rules {
		access := rule.Access
		switch {
		case pathname.Within(rule.Path, "/dev/shm"):
			// A rule here grants the host's /dev/shm. Without one, the view has a
			// private /dev/shm.
		case pathname.Within(rule.Path, "/dev"), pathname.Within(rule.Path, "/proc"):
			if access >= sandbox.Read {
				continue
			}
		case pathname.Within(rule.Path, "/sys"):
			access = min(access, sandbox.Read)
		}
		a[rule.Path] = access
	}
	if a["/dev"] != sandbox.Denied {
		a["/dev"] = sandbox.Hidden
	}
	if a["/proc"] != sandbox.Denied {
		a["/proc"] = sandbox.Read
	}
	if a.at("/sys") == sandbox.Write {
		a["/sys"] = sandbox.Read // the root is writable, but /sys must not be
	}
	return a
}

// denyAliases denies the other paths at which mounts show private files. Rules
// below such a path are dropped.
func (p *planner) denyAliases() {
	for _, alias := range p.aliases {
		maps.DeleteFunc(p.accesses, func(name string, _ sandbox.Access) bool { return pathname.Below(name, alias) })
		if p.at(alias) >= sandbox.Read {
			p.accesses[alias] = sandbox.Denied
		}
	}
}

// denyCrowded denies the directories with too many files that globs deny. Rules
// below such a directory are dropped: they were not searched for files that the
// globs deny.
func (p *planner) denyCrowded() {
	for _, name := range p.crowded {
		if pathname.IsPseudo(name) {
			continue
		}
		maps.DeleteFunc(p.accesses, func(below string, _ sandbox.Access) bool { return pathname.Below(below, name) })
		if p.at(name) >= sandbox.Read {
			p.accesses[name], p.kinds[name] = sandbox.Denied, directory
		}
	}
}

// coverRuntimeDir hides the directory with the sockets of the user's services if
// it is readable but not writable, and no rule names it. Paths below it that
// rules grant stay.
func (p *planner) coverRuntimeDir() {
	name := p.runtimeDir
	if _, ruled := p.accesses[name]; name == "" || ruled || p.at(name) != sandbox.Read {
		return
	}
	p.accesses[name] = sandbox.Hidden
	p.steps[name] = &step{path: name, do: hollow, optional: true}
}

// showSockets shows the sockets that the policy names in the covered directory of the user's services.
func (p *planner) showSockets() {
	for _, name := range p.named {
		if p.runtimeDir != "" && pathname.Below(name, p.runtimeDir) && p.at(name) == sandbox.Hidden && p.kinds[name] == file {
			p.accesses[name] = sandbox.Read
		}
	}
}

// rule adds the step of one rule, if it changes what its surroundings show.
func (p *planner) rule(name string, access sandbox.Access) error {
	around := p.above(name)
	switch {
	case name == "/", p.steps[name] != nil:
		return nil
	case name == "/dev" && access != sandbox.Denied:
		p.steps[name] = &step{path: name, do: devices}
		return nil
	case name == "/proc" && access != sandbox.Denied:
		p.steps[name] = &step{path: name, do: procfs}
		return nil
	case name == "/sys" && access == sandbox.Read && around == sandbox.Write:
		p.steps[name] = &step{path: name, do: seal, optional: true}
		return nil
	case pathname.Below(name, "/proc"):
		// An object of the old /proc may be missing in a fresh one, so the step
		// is optional.
		p.steps[name] = &step{path: name, do: deny, optional: true}
		return nil
	}
	if p.kinds[name] == absent {
		return p.checkAbsent(name, access)
	}
	do := deny
	switch {
	case access == around && access != sandbox.Hidden:
		return nil
	case access == sandbox.Write:
		do = bindWrite
	case access == sandbox.Read && around == sandbox.Write:
		do = p.carveOut(name)
	case access == sandbox.Read:
		do = bindRead
	case pathname.Below(name, "/dev") && around < sandbox.Read:
		return nil // the view's own /dev has nothing there
	}
	p.steps[name] = &step{path: name, do: do}
	return nil
}

// checkAbsent looks at a rule whose path does not exist. Such a rule needs no
// step. But unless the rule makes the path writable, nothing may be created there:
// it is an error if a process could create it.
func (p *planner) checkAbsent(name string, access sandbox.Access) error {
	if access == sandbox.Write {
		return nil
	}
	at := name
	for at != "/" && p.kinds[at] == absent {
		if p.missing[at] || p.barred[at] {
			return nil // for a missing name, placeholder adds a step; a barred one needs none
		}
		at = pathname.Parent(at)
	}
	switch {
	case p.missing[at], p.at(at) != sandbox.Write, p.kinds[at] == file:
		return nil
	case access == sandbox.Read && slices.Contains(sandbox.ProtectedNames(), path.Base(name)) && at != pathname.Parent(name):
		return nil // its writable root is missing too: the view has no such root
	}
	return fmt.Errorf("mounting over %s: it does not exist, has no placeholder and could come into being", name)
}

// carveOut returns how a name that may not be changed is covered in a writable
// directory. A placeholder, or an empty directory that looks like one, is
// hollowed: the view does not show what others put into it on the host.
func (p *planner) carveOut(name string) action {
	if kind := p.kinds[name]; kind == emptyDirectory || kind == directory && p.missing[name] {
		return hollow
	}
	return seal
}

// placeholder adds the step of a name that must not be created.
func (p *planner) placeholder(name string) error {
	if p.kinds[name] == absent {
		return fmt.Errorf("mounting over %s: its placeholder is gone, because somebody outside removed it or its folder cannot be searched: check the mode of the folder, then try again", name)
	}
	if p.steps[name] == nil && p.at(name) == sandbox.Write {
		p.steps[name] = &step{path: name, do: p.carveOut(name)}
	}
	// Otherwise a rule has already made a step for the name, or the name lies in a
	// read-only place.
	return nil
}

// cover adds steps that hide sockets and parts of /sys, unless a rule names them.
func (p *planner) cover() {
	add := func(name string, do action) {
		if _, ruled := p.accesses[name]; !ruled && p.at(name) == sandbox.Read && p.steps[name] == nil {
			p.steps[name] = &step{path: name, do: do, optional: true}
		}
	}
	for _, name := range p.sockets {
		if !slices.Contains(p.named, name) {
			add(name, mute)
		}
	}
	for _, name := range maskedSysfs {
		add(name, hollow)
	}
	if p.resolver {
		for _, name := range nameServices {
			add(name, hollow)
		}
	}
}

// pinAncestors pins every writable directory above a carve-out.
func (p *planner) pinAncestors() {
	for _, carved := range slices.Collect(maps.Values(p.steps)) {
		if carved.do == bindWrite {
			continue
		}
		for name := pathname.Parent(carved.path); name != "/"; name = pathname.Parent(name) {
			if p.at(name) == sandbox.Write && p.steps[name] == nil {
				p.steps[name] = &step{path: name, do: pin}
			}
		}
	}
}

// plan orders the steps. For each step that is mounted inside a file system of
// ours, it has that file system make a place for the mount.
func (p *planner) plan() *viewPlan {
	v := &viewPlan{base: p.at("/")}
	place := func(s spot) {
		if holder := p.holder(s.path); holder != nil {
			holder.inside = append(holder.inside, s)
		} else if v.base < sandbox.Read && !p.shown(s.path) {
			v.inside = append(v.inside, s)
		}
	}
	for _, s := range p.steps {
		place(p.spot(s))
	}
	for _, l := range p.links {
		place(spot{path: l.Path, link: l.Target})
	}
	sortSpots(v.inside)
	for _, s := range p.steps {
		sortSpots(s.inside)
		v.steps = append(v.steps, *s)
	}
	sort.Slice(v.steps, func(i, j int) bool {
		a, b := v.steps[i].path, v.steps[j].path
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), strings.Compare(a, b)) < 0
	})
	return v
}

func sortSpots(spots []spot) {
	sort.Slice(spots, func(i, j int) bool { return spots[i].path < spots[j].path })
}

// holder returns the nearest step above name if that mounts a file system of ours.
func (p *planner) holder(name string) *step {
	for name != "/" {
		name = pathname.Parent(name)
		if s := p.steps[name]; s != nil {
			switch s.do {
			case deny, hollow, devices:
				return s
			}
			return nil
		}
	}
	return nil
}

// shown reports whether a step above name mounts something. If holder has found
// nothing, that is a directory of the host, which has a place for the mount.
func (p *planner) shown(name string) bool {
	for name != "/" {
		name = pathname.Parent(name)
		if p.steps[name] != nil {
			return true
		}
	}
	return false
}

func (p *planner) spot(s *step) spot {
	kind := p.kinds[s.path]
	return spot{path: s.path, dir: s.do == devices || s.do == procfs || kind == directory || kind == emptyDirectory}
}
