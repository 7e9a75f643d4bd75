package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Sandbox is the sandbox that a request asks for (sandbox.md 2). It is decoded and checked here;
// package sandbox decides what it allows. With this one, a command may read everything, write
// nothing and use no network:
//
//	&protocol.Sandbox{
//		Permissions: protocol.Permissions{
//			Type: protocol.PermissionsManaged, Network: protocol.NetworkRestricted,
//			FileSystem: &protocol.FileSystemRules{Type: protocol.FileSystemRestricted, Entries: []protocol.SandboxEntry{
//				{Access: "read", Path: protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: "root"}}},
//			}},
//		},
//		WindowsSandboxLevel: protocol.WindowsSandboxDisabled, // a required member
//	}
type Sandbox struct {
	Permissions    Permissions `json:"permissions"`
	Cwd            *PathURI    `json:"cwd,omitempty"`
	WorkspaceRoots []PathURI   `json:"workspaceRoots,omitempty"`
	// PolicyContext, if not nil, replaces Cwd and WorkspaceRoots.
	PolicyContext        *PolicyContext `json:"policyContext,omitempty"`
	UserHomeDir          *PathURI       `json:"userHomeDir,omitempty"`
	TemporaryDirectories []PathURI      `json:"temporaryDirectories,omitempty"`
	WindowsSandboxLevel  string         `json:"windowsSandboxLevel"`
	UseLegacyLandlock    bool           `json:"useLegacyLandlock,omitempty"`

	text string // see Text
}

// maxText is the greatest length of a kept text, in bytes. The text takes memory in addition to the
// values read from it.
const maxText = 64 << 10

// Text is the JSON that the sandbox was read from; "" if it was not read from a request, or is
// longer than 64 KiB.
func (s *Sandbox) Text() string { return s.text }

// WindowsSandboxDisabled is the WindowsSandboxLevel that a Linux client sends.
const WindowsSandboxDisabled = "disabled"

// PolicyContext is the cwd and the roots that a policy is resolved against.
type PolicyContext struct {
	Cwd            *PathURI  `json:"cwd,omitempty"`
	WorkspaceRoots []PathURI `json:"workspaceRoots,omitempty"`
}

// Kinds of permissions.
const (
	PermissionsManaged  = "managed"
	PermissionsDisabled = "disabled"
	PermissionsExternal = "external"
)

// Permissions is a permission profile (sandbox.md 3). FileSystem is set for
// managed profiles, Network for all except disabled ones.
type Permissions struct {
	Type       string           `json:"type"`
	FileSystem *FileSystemRules `json:"file_system,omitempty"`
	Network    string           `json:"network,omitempty"`
}

// Values of Permissions.Network and FileSystemRules.Type.
const (
	NetworkRestricted      = "restricted"
	NetworkEnabled         = "enabled"
	FileSystemRestricted   = "restricted"
	FileSystemUnrestricted = "unrestricted"
)

// FileSystemRules say what may be read and written.
type FileSystemRules struct {
	Type             string         `json:"type"`
	Entries          []SandboxEntry `json:"entries,omitzero"`
	GlobScanMaxDepth *uint64        `json:"glob_scan_max_depth,omitempty"`
}

// SandboxEntry gives one path an access: read, write, none or deny.
type SandboxEntry struct {
	Path   SandboxPath `json:"path"`
	Access string      `json:"access"`
	// MissingPathBehavior is "skip" or nil.
	MissingPathBehavior *string `json:"missing_path_behavior,omitempty"`
	// Replaceable, only for a denied path, lets a process go on after somebody has replaced the file (sandbox.md 20).
	// Only execagent knows it.
	Replaceable bool `json:"replaceable,omitempty"`
}

// SandboxPath is a path, a glob pattern or a special place, by Type; or, only for execagent, a
// unix_socket or a device with a Path, whose access is write (sandbox.md 19).
type SandboxPath struct {
	Type    string        `json:"type"`
	Path    *PathURI      `json:"path,omitempty"`
	Pattern *string       `json:"pattern,omitempty"`
	Value   *SpecialPlace `json:"value,omitempty"`
}

// SpecialPlace is a place that depends on the request: its Kind is one of
// root, minimal, current_working_directory, project_roots, tmpdir, slash_tmp
// and unknown.
type SpecialPlace struct {
	Kind    string  `json:"kind"`
	Path    *string `json:"path,omitempty"`
	Subpath *string `json:"subpath,omitempty"`
}

// sandbox reads the optional context of a request.
func sandbox(o *strictjson.Object) *Sandbox {
	if !o.Has("sandbox") {
		return nil
	}
	s := new(Sandbox)
	if raw := o.Require("sandbox"); len(raw) <= maxText {
		s.text = string(raw)
	}
	o.In("sandbox", s.UnmarshalObject)
	return s
}

func (s *Sandbox) UnmarshalObject(o *Object) {
	o.In("permissions", s.Permissions.unmarshal)
	s.WindowsSandboxLevel = o.OneOf("windowsSandboxLevel", WindowsSandboxDisabled, "restricted-token", "elevated", "mxc")
	s.Cwd = optPathMember(o, "cwd")
	s.WorkspaceRoots = pathsMemberDefault(o, "workspaceRoots")
	o.OptIn("policyContext", func(o *strictjson.Object) {
		s.PolicyContext = &PolicyContext{Cwd: optPathMember(o, "cwd"), WorkspaceRoots: pathsMemberDefault(o, "workspaceRoots")}
	})
	s.UserHomeDir = optPathMember(o, "userHomeDir")
	if o.Has("temporaryDirectories") {
		s.TemporaryDirectories = pathsMember(o, "temporaryDirectories")
	}
	if o.Has("windowsSandboxProxySettingsMode") {
		o.OneOf("windowsSandboxProxySettingsMode", "reconcile", "preserve")
	}
	s.UseLegacyLandlock = o.BoolDefault("useLegacyLandlock", false)
	o.OptBool("windowsSandboxPrivateDesktop", false)
}

func (p *Permissions) unmarshal(o *strictjson.Object) {
	p.Type = o.OneOf("type", PermissionsManaged, PermissionsDisabled, PermissionsExternal)
	if p.Type == PermissionsManaged {
		o.In("file_system", func(o *strictjson.Object) {
			p.FileSystem = new(FileSystemRules)
			p.FileSystem.unmarshal(o)
		})
	}
	if p.Type != PermissionsDisabled {
		p.Network = o.OneOf("network", NetworkRestricted, NetworkEnabled)
	}
}

func (r *FileSystemRules) unmarshal(o *strictjson.Object) {
	r.Type = o.OneOf("type", FileSystemRestricted, FileSystemUnrestricted)
	if r.Type != FileSystemRestricted {
		return
	}
	r.Entries = []SandboxEntry{}
	o.Each("entries", func(o *strictjson.Object) {
		var e SandboxEntry
		o.In("path", e.Path.unmarshal)
		e.Access = o.OneOf("access", "read", "write", "deny", "none")
		if isNamed(e.Path.Type) && e.Access != "write" {
			o.Fail("access", "a %s needs the access `write`", e.Path.Type)
		}
		if o.Has("missing_path_behavior") {
			e.MissingPathBehavior = new(o.OneOf("missing_path_behavior", "skip"))
		}
		e.Replaceable = o.BoolDefault("replaceable", false)
		r.Entries = append(r.Entries, e)
	})
	if r.GlobScanMaxDepth = o.OptUint64("glob_scan_max_depth"); r.GlobScanMaxDepth != nil && *r.GlobScanMaxDepth == 0 {
		o.Fail("glob_scan_max_depth", "invalid value: 0, expected at least 1")
	}
}

// isNamed reports whether the type of a path is one of ours. They are read apart, because the error for an
// unknown type names the types of the reference.
func isNamed(kind string) bool { return kind == "unix_socket" || kind == "device" }

func (p *SandboxPath) unmarshal(o *strictjson.Object) {
	if p.Type = o.String("type"); isNamed(p.Type) {
		p.Path = new(pathMember(o, "path"))
		return
	}
	switch p.Type = o.OneOf("type", "path", "glob_pattern", "special"); p.Type {
	case "path":
		p.Path = new(pathMember(o, "path"))
	case "glob_pattern":
		p.Pattern = new(o.String("pattern"))
	case "special":
		o.In("value", func(o *strictjson.Object) {
			v := &SpecialPlace{Kind: o.OneOf("kind", "root", "minimal", "current_working_directory",
				"project_roots", "tmpdir", "slash_tmp", "unknown")}
			switch v.Kind {
			case "project_roots":
				v.Subpath = o.OptString("subpath")
			case "unknown":
				v.Path = new(o.String("path"))
				v.Subpath = o.OptString("subpath")
			}
			p.Value = v
		})
	}
}

// UnrestrictedFiles reports whether the sandbox does not restrict the file
// system; a file request never uses the network.
func (s *Sandbox) UnrestrictedFiles() bool {
	p := &s.Permissions
	return s.WindowsSandboxLevel != "mxc" && (p.FileSystem == nil || p.FileSystem.Type == FileSystemUnrestricted)
}
