package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// minimalPaths are the paths that a minimal view shows, if they exist
// (sandbox.md 6.1).
var minimalPaths = []string{
	"/bin", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw", "/sbin", "/usr",
}

// protectedNames are kept read-only at the top of every writable root
// (sandbox.md 6.3).
var protectedNames = []string{".agents", ".aws", ".codex", ".git"}

// ProtectedNames returns the names that are kept read-only at the top of every
// writable root, in a new slice.
func ProtectedNames() []string { return slices.Clone(protectedNames) }

// Compile returns the policy of the profile (sandbox.md 3 to 6), without
// looking at the file system. The error is ErrNeedsCwd, or names the part that
// cannot be enforced or is out of bounds.
func (p Profile) Compile() (*Policy, error) {
	switch {
	case p.Network > NetworkManaged:
		return nil, fmt.Errorf("sandbox network %d is not known", p.Network)
	case p.AllUnixSockets && p.Network != NetworkManaged:
		return nil, fmt.Errorf("sandbox network %v does not have all UNIX sockets", p.Network)
	case p.Transparent && p.Network != NetworkManaged:
		return nil, fmt.Errorf("sandbox network %v has no transparent connections", p.Network)
	}
	switch {
	case p.Kind > Disabled:
		return nil, fmt.Errorf("sandbox kind %d is not known", p.Kind)
	case p.Kind == Disabled && p.Network != NetworkManaged:
		return &Policy{Network: NetworkEnabled}, nil
	}
	if err := p.checkNamed(); err != nil {
		return nil, err
	}
	if p.Kind != Managed || p.Unrestricted {
		return p.writable(false)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	policy := p.network()
	policy.Confined = true
	rules := Draft{}
	minimal := false
	globBytes, ruleBytes := 0, 0
	for i, e := range p.Entries {
		switch {
		case e.Place == PlaceMinimal:
			minimal = minimal || e.Access == Read
		case e.Place == PlaceGlob && e.Access != Denied:
			// A glob that grants something has no effect (sandbox.md 5).
		case e.Place == PlaceGlob:
			globs, err := newGlobs(e.Path, p.Cwd, p.GlobDepth)
			if err != nil {
				return nil, fmt.Errorf("sandbox entry %d: %w", i, err)
			}
			for _, g := range globs {
				globBytes += g.size()
			}
			if globBytes > maxGlobs {
				return nil, fmt.Errorf("sandbox entry %d: with the glob %q there is more to match than %d bytes", i, e.Path, maxGlobs)
			}
			policy.Globs = append(policy.Globs, globs...)
		default:
			paths, err := p.paths(e)
			if err != nil {
				return nil, fmt.Errorf("sandbox entry %d: %w", i, err)
			}
			for _, name := range paths {
				ruleBytes += len(name)
				temporary := e.Place == PlaceTmpDir || e.Place == PlaceSlashTmp
				rules.Add(Rule{Path: name, Access: e.Access, SkipMissing: e.SkipMissing, Temporary: temporary, Replaceable: e.Replaceable})
			}
		}
		if len(rules) > maxRules {
			return nil, fmt.Errorf("sandbox entry %d: there are more than %d paths", i, maxRules)
		}
		if ruleBytes > maxRuleBytes {
			return nil, fmt.Errorf("sandbox entry %d: there are more than %d bytes of paths", i, maxRuleBytes)
		}
	}
	if rules.fullWrite() && len(policy.Globs) == 0 {
		return p.writable(p.KeepPrivate)
	}
	rules.readPseudo()
	rules.protect()
	if minimal {
		for _, name := range minimalPaths {
			rules.Add(Rule{Path: name, Access: Read, Origin: Minimal, SkipMissing: true})
		}
	}
	for _, name := range p.Tools {
		_, ruled := rules[name]
		switch access := rules.Access(name); {
		case access == Hidden:
			rules.Add(Rule{Path: name, Access: Read, Origin: Minimal, SkipMissing: true})
		case access == Write, access == Read && !ruled:
			// If the directory around it is not writable once links have been followed,
			// resolving the policy drops the rule.
			rules[name] = Rule{Path: name, Access: Read, Origin: Protected}
		}
	}
	policy.Globs = CompactGlobs(policy.Globs)
	p.finish(policy, rules)
	return policy, nil
}

// finish gives the policy its rules, and denies the agent's own files.
func (p Profile) finish(policy *Policy, rules Draft) {
	for _, name := range p.Private {
		policy.Private = append(policy.Private, path.Clean(name))
	}
	for _, name := range p.PrivateFolders {
		if name = path.Clean(name); !p.needs(rules, name) {
			policy.Private = append(policy.Private, name)
		}
	}
	slices.Sort(policy.Private)
	policy.Private = slices.Compact(policy.Private)
	policy.SetRules(rules, policy.Private)
}

// writable returns the policy of a profile that makes everything writable, except the agent's own
// files if these are kept private. With a managed network, and with sockets but without a network, the
// process is always confined, because the layers for files and processes keep other ways to the network
// out of its reach.
func (p Profile) writable(keepPrivate bool) (*Policy, error) {
	policy := p.network()
	if p.Network != NetworkManaged && !keepPrivate && !(p.Network == NetworkRestricted && len(p.Sockets) > 0) {
		policy.Sockets, policy.Devices = nil, nil // nothing keeps the process from them
		return policy, nil
	}
	for _, name := range slices.Concat(p.Private, p.PrivateFolders) {
		if err := checkPath(name); err != nil {
			return nil, fmt.Errorf("private path: %w", err)
		}
	}
	policy.Confined = true
	p.finish(policy, Draft{"/": {Path: "/", Access: Write}})
	return policy, nil
}

// network returns a policy with everything that the profile says but for files.
func (p Profile) network() *Policy {
	named := func(names []string) []string {
		names = slices.Clone(names)
		for i, name := range names {
			names[i] = path.Clean(name)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	return &Policy{
		Network: p.Network, AllUnixSockets: p.AllUnixSockets, Transparent: p.Transparent,
		Sockets: named(p.Sockets), Devices: named(p.Devices),
	}
}

// checkNamed refuses sockets and devices that no policy can name.
func (p Profile) checkNamed() error {
	if len(p.Sockets) > maxNamed || len(p.Devices) > maxNamed {
		return fmt.Errorf("the sandbox has more than %d sockets or devices", maxNamed)
	}
	for _, name := range p.Sockets {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("sandbox socket: %w", err)
		}
	}
	for _, name := range p.Devices {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("sandbox device: %w", err)
		}
	}
	return nil
}

// needs reports whether the profile requires a folder.
func (p Profile) needs(rules Draft, folder string) bool {
	if rules.Access(folder) == Write || p.Cwd != "" && pathname.Within(path.Clean(p.Cwd), folder) {
		return true
	}
	for name, r := range rules {
		if r.Origin == Asked && r.Access >= Read && pathname.Within(name, folder) {
			return true
		}
	}
	return false
}

// check refuses a profile with too many parts, with malformed paths outside its
// entries, with entries of unknown access or place, or without a needed cwd.
func (p Profile) check() error {
	if len(p.Entries) > MaxEntries || len(p.WorkspaceRoots) > MaxEntries || len(p.Private) > MaxEntries || len(p.PrivateFolders) > MaxEntries {
		return fmt.Errorf("the sandbox has more than %d entries or workspace roots", MaxEntries)
	}
	if p.GlobDepth < 0 {
		return fmt.Errorf("sandbox glob depth %d is negative", p.GlobDepth)
	}
	for i, name := range p.WorkspaceRoots {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("sandbox workspace root %d: %w", i, err)
		}
	}
	for _, name := range p.Tools {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("tool: %w", err)
		}
	}
	for _, name := range slices.Concat(p.Private, p.PrivateFolders) {
		if err := checkPath(name); err != nil {
			return fmt.Errorf("private path: %w", err)
		}
	}
	if p.Cwd != "" {
		if err := checkPath(p.Cwd); err != nil {
			return fmt.Errorf("sandbox cwd: %w", err)
		}
	}
	for i, e := range p.Entries {
		if e.Access < Denied || e.Access > Write {
			return fmt.Errorf("sandbox entry %d: access %d is not known", i, e.Access)
		}
		if e.Place > PlaceUnknown {
			return fmt.Errorf("sandbox entry %d: place %d is not known", i, e.Place)
		}
		if e.Replaceable && (e.Access != Denied || e.Place == PlaceGlob) {
			return fmt.Errorf("sandbox entry %d: only a denied path is replaceable", i)
		}
		if why := p.useless(e); p.Strict && why != "" {
			return fmt.Errorf("sandbox entry %d has no effect: %s", i, why)
		}
		// Such an entry needs a cwd even if it grants nothing in the end.
		relative := e.Place == PlaceGlob && !path.IsAbs(e.Path)
		if p.Cwd == "" && (relative || e.Place == PlaceProjectRoots || e.Place == PlaceCwd) {
			return ErrNeedsCwd
		}
	}
	return nil
}

// paths returns the paths that the entry names; none if it grants nothing.
func (p Profile) paths(e Entry) ([]string, error) {
	switch e.Place {
	case PlacePath:
		if err := checkPath(e.Path); err != nil {
			return nil, err
		}
		return []string{path.Clean(e.Path)}, nil
	case PlaceRoot:
		return []string{"/"}, nil
	case PlaceSlashTmp:
		return []string{"/tmp"}, nil
	case PlaceTmpDir:
		if !path.IsAbs(p.TmpDir) {
			return nil, nil
		}
		if err := checkPath(p.TmpDir); err != nil {
			return nil, fmt.Errorf("temporary directory: %w", err)
		}
		return []string{path.Clean(p.TmpDir)}, nil
	case PlaceProjectRoots:
		if path.IsAbs(e.Path) || hasDotDot(e.Path) {
			return nil, nil
		}
		var paths []string
		for _, root := range p.WorkspaceRoots {
			name := path.Join(root, e.Path)
			if err := checkPath(name); err != nil {
				return nil, err
			}
			paths = append(paths, name)
		}
		return paths, nil
	}
	return nil, nil
}

// checkPath refuses a path that is not absolute, or that the kernel could read
// differently: we read "/a/.." as "/", which is wrong if /a is a symlink.
func checkPath(name string) error {
	switch {
	case len(name) > MaxPath:
		return fmt.Errorf("path %q... is longer than %d bytes", name[:64], MaxPath)
	case !path.IsAbs(name):
		return fmt.Errorf("path %q is not absolute", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("path %q has a NUL", name)
	case hasDotDot(name):
		return fmt.Errorf("path %q has a %q", name, "..")
	}
	return nil
}

func hasDotDot(name string) bool {
	return slices.Contains(strings.Split(name, "/"), "..")
}
