package agent

import (
	"context"
	"os"
	"strings"

	"github.com/execagent/execagent/hostenv"
	"github.com/execagent/execagent/protocol"
)

// host is what the agent reports about the machine it runs on.
type host struct {
	environ  map[string]string
	version  string
	provider string
	shell    protocol.Shell
	home     string
	cwd      string
}

func newHost(environ []string, version string) *host {
	h := &host{environ: map[string]string{}, version: version, provider: hostenv.ProviderID()}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		h.environ[name] = value
	}
	h.shell.Name, h.shell.Path = hostenv.Shell()
	h.home = hostenv.HomeDir(h.environ["HOME"])
	// Without a working directory of its own the agent still serves paths.
	h.cwd, _ = os.Getwd()
	return h
}

// lookup is a variable of the agent's environment, for HTTP headers.
func (h *host) lookup(name string) (string, bool) {
	value, ok := h.environ[name]
	return value, ok
}

// capabilities are the features that work (rpc.md 3.4, D10).
func capabilities() protocol.Capabilities {
	return protocol.Capabilities{
		FSWatchMissing:        true,
		EnvironmentConfigRead: true,
		HTTPHeaderEnvVars:     true,
		FileWriteStreaming:    true,

		ProcessResize:     true,
		ProcessCloseStdin: true,
		ProcessList:       true,
		ProcessSignals:    true,
		FSRename:          true,
	}
}

func (h *host) info() *protocol.EnvironmentInfo {
	info := &protocol.EnvironmentInfo{
		Shell:                h.shell,
		ExecutorVersion:      h.version,
		ProviderID:           h.provider,
		UserHomeDir:          protocol.NewPathURI(h.home),
		PlatformOS:           "linux",
		PrependPathDirs:      []protocol.PathURI{},
		TemporaryDirectories: []protocol.PathURI{},
		TempDir:              protocol.NewPathURI("/tmp"),
		Capabilities:         capabilities(),
	}
	if h.cwd != "" {
		info.Cwd = protocol.NewPathURI(h.cwd)
	}
	if dir := hostenv.CleanDir(h.environ["TMPDIR"]); dir != "" {
		info.TempDir = protocol.NewPathURI(dir)
		info.TemporaryDirectories = append(info.TemporaryDirectories, info.TempDir)
	}
	return info
}

func (c *connection) environmentInfo(context.Context, protocol.EmptyParams) (*protocol.EnvironmentInfo, error) {
	return c.agent.host.info(), nil
}

func (c *connection) environmentStatus(context.Context, protocol.EmptyParams) (*protocol.StatusResult, error) {
	return &protocol.StatusResult{Status: protocol.StatusReady}, nil
}

