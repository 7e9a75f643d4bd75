package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of capability discovery (capabilities.md 2 and 3).
const (
	MethodDiscoverRoots     = "capabilityRoots/discoverV1"
	MethodDiscoverInstalled = "capabilities/discoverV2"
)

// MaxCapabilityRoots is how many roots a request may have.
const MaxCapabilityRoots = 128

// DiscoverRootsParams asks for the contents of folders that the client selected.
type DiscoverRootsParams struct {
	Roots []CapabilityRoot `json:"roots"`
}

// CapabilityRoot is one of the folders. The client chooses its ID, which may be anything.
type CapabilityRoot struct {
	ID   string `json:"id"`
	Path string `json:"path"` // the URI as it was sent
	// At is the place that Path names. The answer repeats its text.
	At      PathURI  `json:"-"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

// HoldsMessage says that the ids may be as large as the message.
func (*DiscoverRootsParams) HoldsMessage() {}

func (p *DiscoverRootsParams) UnmarshalObject(o *Object) {
	p.Roots = []CapabilityRoot{}
	o.Each("roots", func(o *strictjson.Object) {
		p.Roots = append(p.Roots, CapabilityRoot{
			ID: o.String("id"), Path: o.String("path"), At: pathMember(o, "path"), Sandbox: sandbox(o),
		})
	})
}

// DiscoverRootsResult answers capabilityRoots/discoverV1, in the order of the request.
type DiscoverRootsResult struct {
	Roots []DiscoveredRoot `json:"roots"`
}

// DiscoveredRoot has the files of one folder, uninterpreted. With Error there is nothing
// else.
type DiscoveredRoot struct {
	ID                 string           `json:"id"`
	Path               string           `json:"path"`
	Plugin             *PluginFiles     `json:"plugin"`
	Skills             []SkillFiles     `json:"skills"`
	NamespaceManifests []DiscoveredFile `json:"namespaceManifests"`
	Warnings           []string         `json:"warnings"`
	Error              *string          `json:"error"`
}

// DiscoveredFile is a file with its contents.
type DiscoveredFile struct {
	Path     PathURI `json:"path"`
	Contents string  `json:"contents"`
}

// PluginFiles are the manifest of a plugin and the files that it declares.
type PluginFiles struct {
	Manifest   DiscoveredFile  `json:"manifest"`
	MCPConfig  *DiscoveredFile `json:"mcpConfig"`
	AppsConfig *DiscoveredFile `json:"appsConfig"`
}

// SkillFiles are a SKILL.md and its openai.yaml.
type SkillFiles struct {
	Instructions DiscoveredFile  `json:"instructions"`
	Metadata     *DiscoveredFile `json:"metadata"`
}

// DiscoverInstalledParams asks for the plugins and skills installed for the user of the
// agent. Cwd is required, but changes nothing.
type DiscoverInstalledParams struct {
	Cwd     PathURI  `json:"cwd"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// Details asks for Details in the result. It has no effect with a sandbox. Only execagent knows it.
	Details bool `json:"details,omitempty"`
}

// UnmarshalObject reads the params. Unlike elsewhere, the sandbox must have a cwd.
func (p *DiscoverInstalledParams) UnmarshalObject(o *Object) {
	p.Cwd = pathMember(o, "cwd")
	if p.Sandbox = sandbox(o); p.Sandbox != nil {
		o.In("sandbox", func(o *strictjson.Object) { pathMember(o, "cwd") })
	}
	p.Details = o.BoolDefault("details", false)
}

// DiscoverInstalledResult answers capabilities/discoverV2.
type DiscoverInstalledResult struct {
	Plugins  []InstalledPlugin `json:"plugins"`
	Skills   []InstalledSkill  `json:"skills"` // of no plugin
	Warnings []string          `json:"warnings"`
	// Details are lines about what is passed over, PATH: CAUSE.
	Details []string `json:"details,omitempty"`
}

// InstalledPlugin is a plugin and its skills.
type InstalledPlugin struct {
	ID             string           `json:"id"`
	DisplayName    string           `json:"displayName"`
	RemotePluginID *string          `json:"remotePluginId"`
	Version        string           `json:"version"`
	Root           PathURI          `json:"root"`
	Files          PluginFiles      `json:"files"`
	Skills         []InstalledSkill `json:"skills"`
}

// InstalledSkill has the front matter of a SKILL.md, and its openai.yaml.
type InstalledSkill struct {
	Name             string  `json:"name"` // NAMESPACE:NAME, where there is a namespace
	Description      string  `json:"description"`
	ShortDescription *string `json:"shortDescription"`
	Path             PathURI `json:"path"`
	// DiscoveryRoot is the folder in which a skill without a plugin was found.
	DiscoveryRoot *DiscoveryRoot     `json:"discoveryRoot,omitempty"`
	Dependencies  *SkillDependencies `json:"dependencies"`
	Policy        *SkillPolicy       `json:"policy"`
}

// DiscoveryRoot is a folder of skills.
type DiscoveryRoot struct {
	ID   string  `json:"id"`
	Path PathURI `json:"path"`
}

// SkillDependencies are the tools that a skill needs.
type SkillDependencies struct {
	Tools []SkillTool `json:"tools"`
}

// SkillTool is one of these tools.
type SkillTool struct {
	Type              string  `json:"type"`
	Value             string  `json:"value"`
	Description       *string `json:"description"`
	Transport         *string `json:"transport"`
	Command           *string `json:"command"`
	URL               *string `json:"url"`
	OAuthCallbackPort *uint16 `json:"oauthCallbackPort"`
}

// SkillPolicy restricts the use of a skill.
type SkillPolicy struct {
	AllowImplicitInvocation *bool    `json:"allowImplicitInvocation"`
	Products                []string `json:"products"`
}
