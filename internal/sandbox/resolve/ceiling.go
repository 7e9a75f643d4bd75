package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
)

// Under is as [Within], for a policy under a ceiling: each path gets the lesser access of the two, and the globs
// of both deny. A nil ceiling has no effect.
//
// The links of both are followed before they are compared, because a path that the ceiling allows can lead to a
// path that it does not allow. Missing is empty. A caller that needs placeholders resolves the resulting policy
// once more, and checks it with [Resolved.CheckWithin].
func Under(ceiling, p *sandbox.Policy, descriptors int) (*Resolved, error) {
	asked, err := Within(p, descriptors)
	if err != nil || ceiling == nil {
		return asked, err
	}
	most, err := Within(ceiling, min(descriptors, maxPins)-len(asked.pins))
	if err != nil {
		asked.Close()
		return nil, fmt.Errorf("the operator's ceiling: %w", err)
	}
	return &Resolved{
		Policy:  intersect(asked.Policy, most.Policy),
		watches: slices.Concat(asked.watches, most.watches),
		through: slices.Concat(asked.through, most.through),
		pins:    slices.Concat(asked.pins, most.pins),
	}, nil
}

// CheckWithin returns an error if the resolved policy gives more than p, whose paths are canonical. It gives
// more if somebody has put a link where there was none when p was made.
func (r *Resolved) CheckWithin(p *sandbox.Policy) error {
	for _, rule := range r.Policy.Rules {
		if rule.Access > p.Access(rule.Path) {
			return exceeds(rule.Path)
		}
	}
	for _, named := range [][2][]string{{r.Policy.Sockets, p.Sockets}, {r.Policy.Devices, p.Devices}} {
		for _, name := range named[0] {
			if !slices.Contains(named[1], name) {
				return exceeds(name)
			}
		}
	}
	return nil
}

func exceeds(name string) error {
	return fmt.Errorf("the sandbox path %s is not within the operator's ceiling any more, because somebody has replaced a path of the sandbox by a link; send the request again", name)
}

// namedByBoth returns those of names, which one policy names, that the other one names too or does not restrict.
func namedByBoth(names, others []string, free bool) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !free && !slices.Contains(others, name) })
}

// intersect returns the policy that gives each path the lesser access of two resolved policies. It has at most
// the rules and globs of both, so at most twice as many as a profile may have.
func intersect(a, b *sandbox.Policy) *sandbox.Policy {
	p := &sandbox.Policy{Network: lesser(a.Network, b.Network), SharesPIDs: a.SharesPIDs || b.SharesPIDs}
	managed := p.Network == sandbox.NetworkManaged
	p.AllUnixSockets, p.Transparent = managed && a.AllUnixSockets && !b.Confined, managed && a.Transparent
	free := !b.Confined && b.Network == sandbox.NetworkEnabled
	p.Sockets, p.Devices = namedByBoth(a.Sockets, b.Sockets, free), namedByBoth(a.Devices, b.Devices, !b.Confined)
	if managed && a.AllUnixSockets && b.Confined {
		// Of all sockets that the process of a sees, these.
		p.Sockets = slices.DeleteFunc(slices.Clone(b.Sockets), func(name string) bool { return a.Access(name) < sandbox.Read })
	}
	switch {
	case !a.Confined && !b.Confined:
		return p
	case !a.Confined:
		// Nothing keeps the process of a from devices, nor, with a network, from sockets.
		p.Devices = slices.Clone(b.Devices)
		if a.Network == sandbox.NetworkEnabled {
			p.Sockets = slices.Clone(b.Sockets)
		}
		a = b
	case !b.Confined:
		b = a
	}
	p.Confined = true
	p.Globs = sandbox.CompactGlobs(slices.Concat(a.Globs, b.Globs))
	p.Private = slices.Concat(a.Private, b.Private)
	slices.Sort(p.Private)
	p.Private = slices.Compact(p.Private)

	// In neither policy is a hidden path below a path that is not hidden. So a path that is hidden here has no
	// rule above it, and needs no rule.
	rules := sandbox.Draft{}
	for _, name := range pathsOf(a, b) {
		access := min(accessOf(a, name), accessOf(b, name))
		if access == sandbox.Hidden {
			continue
		}
		rule := sandbox.Rule{
			Path: name, Access: access, Temporary: access == sandbox.Write && (a.Temporary(name) || b.Temporary(name)),
			Replaceable: access == sandbox.Denied && mayReplace(a, name) && mayReplace(b, name),
		}
		above := sandbox.Rule{}
		if name != "/" {
			above = rules.Rule(pathname.Parent(name))
		}
		if access == above.Access && access != sandbox.Write {
			continue // the rule above says the same; a root is kept, because its names are protected
		}
		rule.Origin = originOf(a, b, rule, above.Access)
		rules[name] = rule
	}
	p.SetRules(rules, nil)
	for _, l := range slices.Concat(a.Links, b.Links) {
		if accessOf(p, l.Path) < sandbox.Read && min(a.Access(l.Path), b.Access(l.Path)) >= sandbox.Read {
			i, known := slices.BinarySearchFunc(p.Links, l, func(x, l sandbox.Link) int { return strings.Compare(x.Path, l.Path) })
			if !known {
				p.Links = slices.Insert(p.Links, i, l)
			}
		}
	}
	return p
}

// lesser returns the network that gives less. From less to more these are: none, a proxy, the host's.
func lesser(a, b sandbox.Network) sandbox.Network {
	switch {
	case a == sandbox.NetworkEnabled:
		return b
	case b == sandbox.NetworkEnabled:
		return a
	}
	return min(a, b)
}

// pathsOf returns the paths of all rules, sorted.
func pathsOf(a, b *sandbox.Policy) []string {
	names := map[string]struct{}{}
	for _, r := range slices.Concat(a.Rules, b.Rules) {
		names[r.Path] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// accessOf returns the access that the rules of a policy give, without its links.
func accessOf(p *sandbox.Policy, name string) sandbox.Access {
	rules := *p
	rules.Links = nil
	return rules.Access(name)
}

// mayReplace reports whether a policy does not mind that the object at a path is replaced, because it shows the path,
// or denies it by a replaceable rule.
func mayReplace(p *sandbox.Policy, name string) bool {
	return accessOf(p, name) >= sandbox.Read || p.Replaceable(name)
}

// originOf returns the origin of a rule. It is the origin of the rules of a and b that are about the same path
// and give the same access. A name is protected only in a directory that can be written.
func originOf(a, b *sandbox.Policy, rule sandbox.Rule, above sandbox.Access) sandbox.Origin {
	found := map[sandbox.Origin]bool{}
	for _, p := range []*sandbox.Policy{a, b} {
		if i, ok := slices.BinarySearchFunc(p.Rules, rule.Path, func(r sandbox.Rule, path string) int { return strings.Compare(r.Path, path) }); ok && p.Rules[i].Access == rule.Access {
			found[p.Rules[i].Origin] = true
		}
	}
	switch {
	case found[sandbox.Private]:
		return sandbox.Private
	case above == sandbox.Write && found[sandbox.Protected]:
		return sandbox.Protected
	case above == sandbox.Write && found[sandbox.GitDir]:
		return sandbox.GitDir
	case found[sandbox.Minimal] && len(found) == 1:
		return sandbox.Minimal
	}
	return sandbox.Asked
}
