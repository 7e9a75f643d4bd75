package profile

import (
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// Wire returns the sandbox of a request that asks for a profile. The profile is managed and restricts files.
// TmpDir and Strict are lost, because the agent that gets the request uses its own TMPDIR.
func Wire(p *sandbox.Profile) *protocol.Sandbox {
	rules := &protocol.FileSystemRules{Type: protocol.FileSystemRestricted}
	for _, e := range p.Entries {
		rules.Entries = append(rules.Entries, wireEntry(e))
	}
	for i, names := range [][]string{p.Sockets, p.Devices} {
		for _, name := range names {
			path := protocol.SandboxPath{Type: [...]string{"unix_socket", "device"}[i], Path: new(protocol.NewPathURI(name))}
			rules.Entries = append(rules.Entries, protocol.SandboxEntry{Access: "write", Path: path})
		}
	}
	s := &protocol.Sandbox{
		Permissions:         protocol.Permissions{Type: protocol.PermissionsManaged, FileSystem: rules, Network: protocol.NetworkRestricted},
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
	if p.Cwd != "" {
		s.Cwd = new(protocol.NewPathURI(p.Cwd))
	}
	for _, root := range p.WorkspaceRoots {
		s.WorkspaceRoots = append(s.WorkspaceRoots, protocol.NewPathURI(root))
	}
	if p.Network == sandbox.NetworkEnabled {
		s.Permissions.Network = protocol.NetworkEnabled
	}
	return s
}

func wireEntry(e sandbox.Entry) protocol.SandboxEntry {
	entry := protocol.SandboxEntry{Access: accessWords[e.Access], Replaceable: e.Replaceable}
	switch e.Place {
	case sandbox.PlacePath:
		entry.Path = protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(e.Path))}
	case sandbox.PlaceGlob:
		entry.Path = protocol.SandboxPath{Type: "glob_pattern", Pattern: &e.Path}
	default:
		entry.Path = protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: placeWords[e.Place]}}
		if e.Place == sandbox.PlaceProjectRoots && e.Path != "" {
			entry.Path.Value.Subpath = &e.Path
		}
	}
	if e.SkipMissing {
		entry.MissingPathBehavior = new("skip")
	}
	return entry
}

// accessWords and placeWords are the words of accesses and places, by their values.
var (
	accessWords = map[sandbox.Access]string{sandbox.Read: "read", sandbox.Write: "write", sandbox.Denied: "deny"}
	placeWords  = byValue(places)
)

func byValue(words map[string]sandbox.Place) map[sandbox.Place]string {
	values := map[sandbox.Place]string{}
	for word, place := range words {
		values[place] = word
	}
	return values
}
