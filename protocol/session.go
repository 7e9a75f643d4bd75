package protocol

// Methods of the session and of the environment (rpc.md 3).
const (
	MethodInitialize        = "initialize"
	MethodInitialized       = "initialized" // notification, client to server
	MethodEnvironmentInfo   = "environment/info"
	MethodEnvironmentStatus = "environment/status"
	MethodConfigRead        = "environmentConfig/read"
)

// InitializeParams opens a session, or resumes one. Only servers with namedSessions know
// the members after the blank line (rpc.md 8.2).
type InitializeParams struct {
	ClientName      string  `json:"clientName"`
	ResumeSessionID *string `json:"resumeSessionId"`

	// SessionName opens the session with that name. If there is none yet, it makes
	// one, unless Existing is set.
	SessionName *string `json:"sessionName,omitempty"`
	Existing    bool    `json:"existing,omitempty"`
	// Take takes a named session from the client that has it.
	Take bool `json:"take,omitempty"`
	// RetainMs is how long the session should be kept, see [OpenedSession]; nil: as
	// before, or as the server decides.
	RetainMs *uint64 `json:"retainMs,omitempty"`
	// SubcommandApprovals: the client answers questions about commands. Only where the server
	// has subcommandApprovals (execpolicy.md 8.4).
	SubcommandApprovals bool `json:"subcommandApprovals,omitempty"`
	// Refusals: the client wants to know what was refused to its processes. Only where the server has
	// refusals (rpc.md 4.6).
	Refusals bool `json:"refusals,omitempty"`
	// ErrorData: the client wants the causes of errors, see [Error.Cause]. Only where the server has
	// errorData.
	ErrorData bool `json:"errorData,omitempty"`
}

func (p *InitializeParams) UnmarshalObject(o *Object) {
	p.ClientName = o.String("clientName")
	p.ResumeSessionID = o.OptString("resumeSessionId")
	p.SessionName = sessionName(o, "sessionName")
	p.Existing = o.OptBool("existing", false)
	p.Take = o.OptBool("take", false)
	p.RetainMs = o.OptUint64("retainMs")
	p.SubcommandApprovals = o.OptBool("subcommandApprovals", false)
	p.Refusals = o.OptBool("refusals", false)
	p.ErrorData = o.OptBool("errorData", false)
	if p.SessionName != nil && p.ResumeSessionID != nil {
		o.Fail("sessionName", "has no meaning with resumeSessionId")
	}
}

// InitializeResult answers initialize.
type InitializeResult struct {
	// SessionID is a random UUID, valid for a resume as long as the server
	// keeps detached sessions.
	SessionID string `json:"sessionId"`
	// EnvironmentInfo is nil if the client must ask for it.
	EnvironmentInfo *EnvironmentInfo `json:"environmentInfo,omitempty"`
	// Session is set if the session has a name, or RetainMs was given.
	Session *OpenedSession `json:"session,omitempty"`
}

// EnvironmentInfo describes the machine that the server runs on (rpc.md 3.4).
// Directories are path URIs.
type EnvironmentInfo struct {
	Shell                Shell        `json:"shell"`
	ExecutorVersion      string       `json:"executorVersion"`
	ProviderID           string       `json:"providerId"`
	Cwd                  PathURI      `json:"cwd,omitzero"`
	UserHomeDir          PathURI      `json:"userHomeDir,omitzero"`
	PlatformOS           string       `json:"platformOs"`
	PrependPathDirs      []PathURI    `json:"prependPathDirs"`
	TemporaryDirectories []PathURI    `json:"temporaryDirectories"`
	TempDir              PathURI      `json:"tempDir"`
	Capabilities         Capabilities `json:"capabilities"`
}

// Shell is the user's shell: a name out of zsh, bash, powershell, sh and cmd,
// and its native path.
type Shell struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Capabilities tell a client which methods and members the server knows; a missing
// flag is false. Only execagent has the flags after the blank line (rpc.md 8).
type Capabilities struct {
	NetworkProxyLaunch                         bool `json:"networkProxyLaunch"`
	NetworkProxyReviewDomains                  bool `json:"networkProxyReviewDomains"`
	NetworkProxyTransparentTCP                 bool `json:"networkProxyTransparentTcp"`
	CredentialMasking                          bool `json:"credentialMasking"`
	CredentialMaskingCustomProviders           bool `json:"credentialMaskingCustomProviders"`
	CapabilityDiscoverySandbox                 bool `json:"capabilityDiscoverySandbox"`
	FSWatchMissing                             bool `json:"fsWatchMissing"`
	CapabilityDiscoveryV2                      bool `json:"capabilityDiscoveryV2"`
	EnvironmentConfigRead                      bool `json:"environmentConfigRead"`
	HTTPHeaderEnvVars                          bool `json:"httpHeaderEnvVars"`
	SandboxedFileStreaming                     bool `json:"sandboxedFileStreaming"`
	FileWriteStreaming                         bool `json:"fileWriteStreaming"`
	ShellSnapshotV2                            bool `json:"shellSnapshotV2"`
	WindowsMXC                                 bool `json:"windowsMxc"`
	LinuxRootWritePreservesDevices             bool `json:"linuxRootWritePreservesDevices"`
	LinuxApprovedRootWritePreservesRestriction bool `json:"linuxApprovedRootWritePreservesRestrictions"`

	ProcessResize     bool `json:"processResize"`
	ProcessCloseStdin bool `json:"processCloseStdin"`
	ProcessList       bool `json:"processList"`
	ProcessSignals    bool `json:"processSignals"`
	FSRename          bool `json:"fsRename"`
	FSWatch           bool `json:"fsWatch"`
	FSApplyPatch      bool `json:"fsApplyPatch"`
	NamedSessions     bool `json:"namedSessions"`
	ProcessBuiltins   bool `json:"processBuiltins"`
	SocketForward     bool `json:"socketForward"`

	FSSearch bool `json:"fsSearch"`
	Ports    bool `json:"ports"`

	SubcommandApprovals bool `json:"subcommandApprovals"`
	NetworkRequestRules bool `json:"networkRequestRules"`
	SandboxUnixSockets  bool `json:"sandboxUnixSockets"`
	SandboxDevices      bool `json:"sandboxDevices"`
	Refusals            bool `json:"refusals"`
	ExecApprovalEnforce bool `json:"execApprovalEnforce"`
	ProcessTimeout      bool `json:"processTimeout"`
	ProcessMaxOutput    bool `json:"processMaxOutput"`
	ProcessLimits       bool `json:"processLimits"`
	ProcessRunAs        bool `json:"processRunAs"`
	ProcessStartID      bool `json:"processStartId"`

	ErrorData             bool `json:"errorData"`
	FSReadDirectoryLstat  bool `json:"fsReadDirectoryLstat"`
	FSMetadata            bool `json:"fsMetadata"`
	FSWriteOptions        bool `json:"fsWriteOptions"`
	FSCanonicalizeMissing bool `json:"fsCanonicalizeMissing"`
	SandboxReplaceable    bool `json:"sandboxReplaceable"`

	// The operator gives requests without a sandbox a default one, lets no request exceed a ceiling, or
	// refuses requests that would not be confined (docs/operator.md).
	SandboxDefault  bool `json:"sandboxDefault,omitempty"`
	SandboxCeiling  bool `json:"sandboxCeiling,omitempty"`
	SandboxRequired bool `json:"sandboxRequired,omitempty"`
}

// StatusResult answers environment/status.
type StatusResult struct {
	Status string `json:"status"`
}

// StatusReady is the only status.
const StatusReady = "ready"

// ConfigReadParams asks for parts of the configuration files of the machine
// (rpc.md 3.6). A key path is a list of TOML keys.
type ConfigReadParams struct {
	Cwd               PathURI    `json:"cwd"`
	ConfigPaths       [][]string `json:"configPaths"`
	RequirementsPaths [][]string `json:"requirementsPaths"`
}

func (p *ConfigReadParams) UnmarshalObject(o *Object) {
	p.Cwd = pathMember(o, "cwd")
	p.ConfigPaths = o.StringLists("configPaths")
	p.RequirementsPaths = o.StringLists("requirementsPaths")
}

// ConfigReadResult answers environmentConfig/read.
type ConfigReadResult struct {
	UserHomeDir  PathURI      `json:"userHomeDir"`
	CodexHomeDir PathURI      `json:"codexHomeDir"`
	Hostname     string       `json:"hostname"`
	Config       ConfigLayers `json:"config"`
	Requirements ConfigLayers `json:"requirements"`
}

// ConfigLayers are configuration files in order of precedence, lowest first.
type ConfigLayers struct {
	Layers              []ConfigLayer `json:"layers"`
	CloudInsertionIndex int           `json:"cloudInsertionIndex"`
}

// ConfigLayer has the values of one file for the selected keys.
type ConfigLayer struct {
	Source  string  `json:"source"`
	BaseDir PathURI `json:"baseDir"`
	TOML    string  `json:"toml"`
}
