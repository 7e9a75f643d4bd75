// Package profile turns the sandbox of a request into a profile of package sandbox ([Of]), and a profile into
// the sandbox of a request ([Wire]). A request that asks for confinement gets it exactly or is refused, never
// run with less (sandbox.md 15).
package profile

import (
	"errors"
	"path/filepath"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// Of translates the sandbox of a request. Its policy context wins over the
// members beside it. cwd is used where neither names a working directory, and
// may be empty; tmpdir is the TMPDIR of what is confined. For a path that is
// not one of this system the error is a *protocol.ForeignPathError.
func Of(s *protocol.Sandbox, cwd, tmpdir string) (sandbox.Profile, error) {
	p := sandbox.Profile{Cwd: cwd, TmpDir: tmpdir}
	if s.WindowsSandboxLevel == "mxc" {
		return p, ErrNoMXC
	}
	switch s.Permissions.Type {
	case protocol.PermissionsDisabled:
		p.Kind = sandbox.Disabled
	case protocol.PermissionsExternal:
		p.Kind = sandbox.External
	default:
		p.Kind = sandbox.Managed
	}
	if s.Permissions.Network == protocol.NetworkEnabled {
		p.Network = sandbox.NetworkEnabled
	}

	uri, roots := s.Cwd, s.WorkspaceRoots
	if c := s.PolicyContext; c != nil {
		roots = c.WorkspaceRoots
		if c.Cwd != nil {
			uri = c.Cwd
		}
	}
	rules := s.Permissions.FileSystem
	if rules == nil {
		return p, nil
	}
	// A working directory or root that is a path of another system is refused only if
	// something needs it: an entry, or a process, which always does and for which
	// cwd is set (sandbox.md 2).
	dynamic, projects := dependence(rules.Entries)
	var err error
	if uri != nil && (dynamic || cwd != "") {
		if p.Cwd, err = uri.Native(); err != nil {
			return p, err
		}
	}
	for _, root := range roots {
		path, err := root.Native()
		switch {
		case err != nil && (projects || cwd != ""):
			return p, err
		case projects:
			p.WorkspaceRoots = append(p.WorkspaceRoots, path)
		}
	}
	p.Unrestricted = rules.Type == protocol.FileSystemUnrestricted
	if depth := rules.GlobScanMaxDepth; depth != nil {
		p.GlobDepth = int(min(*depth, maxGlobDepth))
	}
	p.Entries = make([]sandbox.Entry, 0, len(rules.Entries))
	for i := range rules.Entries {
		e := &rules.Entries[i]
		switch e.Path.Type {
		case "unix_socket":
			err = appendNative(&p.Sockets, e.Path.Path)
		case "device":
			err = appendNative(&p.Devices, e.Path.Path)
		default:
			var made sandbox.Entry
			made, err = entry(e)
			p.Entries = append(p.Entries, made)
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

func appendNative(to *[]string, uri *protocol.PathURI) error {
	name, err := uri.Native()
	*to = append(*to, name)
	return err
}

// dependence reports whether entries depend on a working directory, and whether
// on workspace roots.
func dependence(entries []protocol.SandboxEntry) (dynamic, projects bool) {
	for i := range entries {
		switch e := &entries[i].Path; {
		case e.Type == "glob_pattern":
			dynamic = dynamic || !filepath.IsAbs(*e.Pattern)
		case e.Type == "special" && e.Value.Kind == "project_roots":
			dynamic, projects = true, true
		case e.Type == "special" && e.Value.Kind == "current_working_directory":
			dynamic = true
		}
	}
	return dynamic, projects
}

// ErrNoMXC refuses the sandbox of another system.
var ErrNoMXC = errors.New("windowsSandboxLevel: there is no MXC sandbox on this system")

// maxGlobDepth is more names than a path can have. A request may give a depth that
// does not fit an int.
const maxGlobDepth = 1 << 20

func entry(e *protocol.SandboxEntry) (sandbox.Entry, error) {
	r := sandbox.Entry{Access: accesses[e.Access], SkipMissing: e.MissingPathBehavior != nil, Replaceable: e.Replaceable}
	switch e.Path.Type {
	case "path":
		path, err := e.Path.Path.Native()
		r.Place, r.Path = sandbox.PlacePath, path
		return r, err
	case "glob_pattern":
		r.Place, r.Path = sandbox.PlaceGlob, *e.Path.Pattern
	default:
		r.Place = places[e.Path.Value.Kind]
		if e.Path.Value.Subpath != nil {
			r.Path = *e.Path.Value.Subpath
		}
	}
	return r, nil
}

var accesses = map[string]sandbox.Access{
	"read": sandbox.Read, "write": sandbox.Write, "deny": sandbox.Denied, "none": sandbox.Denied,
}

var places = map[string]sandbox.Place{
	"root": sandbox.PlaceRoot, "minimal": sandbox.PlaceMinimal, "current_working_directory": sandbox.PlaceCwd,
	"project_roots": sandbox.PlaceProjectRoots, "tmpdir": sandbox.PlaceTmpDir, "slash_tmp": sandbox.PlaceSlashTmp,
	"unknown": sandbox.PlaceUnknown,
}
