package netpolicy

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/netproxy"
)

// Operator is the word of an operator who has written this policy, or, for nil, of one who
// has written none: then a client decides alone. environ is that of the agent.
func (p *Policy) Operator(environ []string) egress.Operator {
	upstream := upstreamEnvironment
	var o egress.Operator
	if p != nil {
		upstream, o.Ceiling, o.Masking = p.Upstream, p.rules, p.Masking
	}
	switch upstream {
	case upstreamEnvironment:
		o.Upstream = netproxy.UpstreamOf(func(name string) string {
			for _, entry := range environ {
				if value, ok := strings.CutPrefix(entry, name+"="); ok {
					return value
				}
			}
			return ""
		})
	case upstreamNone:
	default: // an operator who names a proxy means that there is no other way out
		o.Upstream, o.Through = netproxy.UpstreamOf(func(string) string { return upstream }), true
	}
	return o
}

// Follow reads the file of a policy again at each signal, until ctx ends. What it finds goes to
// set, and what that changes into the log. A file that cannot be read changes nothing.
func (p *Policy) Follow(ctx context.Context, path string, signals <-chan os.Signal, set func(*Policy), log *slog.Logger) {
	for current := p; ; {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		next, err := Read(path)
		if err != nil {
			log.Error("the network policy cannot be read: the one before it stays", "error", err)
			continue
		}
		changes := current.changes(next)
		if changes == "" {
			log.Info("the network policy was read again: nothing has changed")
			continue
		}
		current = next
		set(next)
		log.Info("the network policy has changed, for commands that are started from now on", "changes", changes)
	}
}
