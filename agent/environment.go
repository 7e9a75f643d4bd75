package agent

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/execagent/execagent/internal/hostenv"
	"github.com/execagent/execagent/internal/sockowner"
	"github.com/execagent/execagent/protocol"
)

// host is what the agent reports about the machine it runs on.
type host struct {
	environ    map[string]string
	version    string
	provider   string
	shell      protocol.Shell
	loginShell string
	home       string // empty when there is none
	cwd        string // empty when there is none
	tools      string // directory for the PATH of commands, empty when there is none
	// capabilities are those that the configuration decides about.
	capabilities protocol.Capabilities
}

func newHost(cfg *Config) *host {
	h := &host{environ: map[string]string{}, version: cfg.Version, tools: cfg.Tool.folder().Dir(), capabilities: capabilities(cfg)}
	for _, entry := range cfg.Environ {
		name, value, _ := strings.Cut(entry, "=")
		h.environ[name] = value
	}
	executable, _ := os.Executable() // after an error ProviderID does without the file
	h.provider = hostenv.ProviderID(executable)
	h.shell.Name, h.shell.Path = hostenv.Shell(h.lookup)
	h.loginShell = hostenv.LoginShell()
	h.home = hostenv.HomeDir(h.lookup)
	h.cwd, _ = os.Getwd()
	return h
}

// lookup returns a variable of the agent's environment.
func (h *host) lookup(name string) (string, bool) {
	value, ok := h.environ[name]
	return value, ok
}

// capabilities returns the features that work with a configuration (rpc.md 3.4, 8). [Agent.info] adds those that
// depend on this host.
func capabilities(cfg *Config) protocol.Capabilities {
	return protocol.Capabilities{
		NetworkProxyLaunch:               true,
		NetworkProxyReviewDomains:        true,
		CredentialMasking:                true,
		CredentialMaskingCustomProviders: true,

		CapabilityDiscoverySandbox: true,
		CapabilityDiscoveryV2:      true,
		ShellSnapshotV2:            true,
		FSWatchMissing:             true,
		HTTPHeaderEnvVars:          true,
		FileWriteStreaming:         true,
		SandboxedFileStreaming:     true,

		ProcessResize:     true,
		ProcessCloseStdin: true,
		ProcessList:       true,
		ProcessSignals:    true,
		FSRename:          true,
		FSWatch:           true,
		FSApplyPatch:      true,
		NamedSessions:     true,
		SocketForward:     !cfg.offline(),
		FSSearch:          true,

		SubcommandApprovals: true,
		NetworkRequestRules: true,
		SandboxUnixSockets:  true,
		SandboxDevices:      true,
		Refusals:            true,
		ExecApprovalEnforce: true,
		ProcessTimeout:      true,
		ProcessMaxOutput:    true,
		ProcessLimits:       true,
		ProcessStartID:      true,

		ErrorData:             true,
		FSReadDirectoryLstat:  true,
		FSMetadata:            true,
		FSWriteOptions:        true,
		FSCanonicalizeMissing: true,
		SandboxReplaceable:    true,

		ProcessBuiltins: cfg.Confines && !cfg.confinesAll(),
		SandboxDefault:  cfg.SandboxDefault != nil,
		SandboxCeiling:  cfg.SandboxCeiling != nil,
		SandboxRequired: cfg.RequireSandbox,
	}
}

// info returns what the agent reports. It announces no method and no member that it would always refuse.
func (a *Agent) info() *protocol.EnvironmentInfo {
	info := a.host.info()
	c := &info.Capabilities
	c.NetworkProxyTransparentTCP = a.sandboxes.transparent()
	c.EnvironmentConfigRead = a.checkReadsAll() == nil
	c.Ports = !a.cfg.offline() && sockowner.Tells()
	c.ProcessRunAs = a.runsAs()
	return info
}

func (h *host) info() *protocol.EnvironmentInfo {
	info := &protocol.EnvironmentInfo{
		Shell:                h.shell,
		ExecutorVersion:      h.version,
		ProviderID:           h.provider,
		PlatformOS:           "linux",
		PrependPathDirs:      []protocol.PathURI{},
		TemporaryDirectories: []protocol.PathURI{},
		TempDir:              protocol.NewPathURI(hostenv.TempDir(h.lookup)),
		Capabilities:         h.capabilities,
	}
	if h.tools != "" {
		info.PrependPathDirs = append(info.PrependPathDirs, protocol.NewPathURI(h.tools))
	}
	if h.home != "" {
		info.UserHomeDir = protocol.NewPathURI(h.home)
	}
	if h.cwd != "" {
		info.Cwd = protocol.NewPathURI(h.cwd)
	}
	for _, dir := range hostenv.TemporaryDirectories(h.lookup) {
		info.TemporaryDirectories = append(info.TemporaryDirectories, protocol.NewPathURI(dir))
	}
	return info
}

func (c *connection) environmentInfo(context.Context, protocol.EmptyParams) (*protocol.EnvironmentInfo, error) {
	return c.agent.info(), nil
}

func (c *connection) environmentStatus(context.Context, protocol.EmptyParams) (*protocol.StatusResult, error) {
	return &protocol.StatusResult{Status: protocol.StatusReady}, nil
}

func (c *connection) readConfig(ctx context.Context, p protocol.ConfigReadParams) (*protocol.ConfigReadResult, error) {
	if err := c.agent.checkReadsAll(); err != nil {
		return nil, err
	}
	cwd, err := p.Cwd.Native()
	if err != nil {
		return nil, err
	}
	h := c.agent.host
	codexHome, _ := h.lookup("CODEX_HOME")
	found, err := hostenv.ReadConfig(ctx, hostenv.ConfigQuery{
		Cwd:               cwd,
		ConfigPaths:       p.ConfigPaths,
		RequirementsPaths: p.RequirementsPaths,
		Home:              h.home,
		CodexHome:         codexHome,
	})
	if errors.Is(err, hostenv.ErrNoConfigPath) || errors.Is(err, hostenv.ErrEmptyConfigPath) || errors.Is(err, hostenv.ErrManyConfigKeys) {
		return nil, protocol.InvalidParams("%v", err)
	}
	if err != nil {
		return nil, caused(protocol.Errorf(protocol.CodeInternal, "%v", err), err)
	}
	r := &protocol.ConfigReadResult{
		CodexHomeDir: protocol.NewPathURI(found.CodexHome),
		Hostname:     found.Hostname,
		Config:       configLayers(found.Config),
		Requirements: configLayers(found.Requirements),
	}
	if found.Home != "" {
		r.UserHomeDir = protocol.NewPathURI(found.Home)
	}
	return r, nil
}

func configLayers(stack hostenv.ConfigStack) protocol.ConfigLayers {
	r := protocol.ConfigLayers{Layers: []protocol.ConfigLayer{}, CloudInsertionIndex: stack.CloudInsertionIndex}
	for _, l := range stack.Layers {
		r.Layers = append(r.Layers, protocol.ConfigLayer{Source: l.Source, BaseDir: protocol.NewPathURI(l.BaseDir), TOML: l.TOML})
	}
	return r
}
