package agent

import (
	"context"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/agent/internal/skills"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/hostenv"
	"github.com/execagent/execagent/protocol"
)

// places returns the places where skills and plugins are installed for the user of the agent.
func (h *host) places() discovery.Places {
	p := discovery.Places{CodexHome: hostenv.CodexHome(h.lookup), System: discovery.SystemFolder}
	if home, _ := h.lookup("HOME"); home != "" {
		p.Home = h.home
	}
	return p
}

// rootsResult gives back its share of memory when it has been sent.
type rootsResult struct {
	protocol.DiscoverRootsResult
	share answers.Share
}

func (r *rootsResult) Sent() { r.share.Release() }

func (c *connection) discoverRoots(ctx context.Context, p protocol.DiscoverRootsParams) (*rootsResult, error) {
	if len(p.Roots) > protocol.MaxCapabilityRoots {
		return nil, protocol.InvalidRequest("capability root discovery accepts at most %d roots", protocol.MaxCapabilityRoots)
	}
	found, size, err := c.agent.skills.Roots(ctx, c.owner, p.Roots)
	if err != nil {
		return nil, err
	}
	r := &rootsResult{found, c.share(c.listings)}
	// Twice the size: the files, and the message with them, which is built as a whole.
	return r, r.share.List(ctx, 2*int64(size))
}

// installedResult gives back its share of memory when it has been sent.
type installedResult struct {
	skills.Encoded
	share answers.Share
}

func (r *installedResult) Sent() { r.share.Release() }

func (c *connection) discoverInstalled(ctx context.Context, p protocol.DiscoverInstalledParams) (*installedResult, error) {
	var err error
	if p.Sandbox, err = c.agent.sandboxOf(p.Sandbox); err != nil {
		return nil, err
	}
	answer, err := c.agent.skills.Installed(ctx, c.owner, p.Sandbox)
	r := &installedResult{answer, c.share(c.listings)}
	if err != nil || !p.Details || p.Sandbox != nil {
		return r, err
	}
	if r.Encoded, err = c.agent.skills.WithDetails(ctx, c.owner, answer); err != nil {
		return nil, err
	}
	return r, r.share.List(ctx, int64(len(r.Encoded))) // it is nobody else's, as the answer without details is
}
