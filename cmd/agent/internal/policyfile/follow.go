package policyfile

import (
	"context"
	"log/slog"
	"os"

	"github.com/execagent/execagent/agent"
)

// FollowNetwork reads the file of the policy p again at each signal, until ctx ends. What it finds goes to
// set, and what that changes into the log. A file that cannot be read changes nothing.
func FollowNetwork(ctx context.Context, p *agent.NetworkPolicy, path string, signals <-chan os.Signal, set func(*agent.NetworkPolicy) error, log *slog.Logger) {
	for current := p; ; {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		next, err := ReadNetwork(path)
		changed := ""
		if err == nil {
			changed = changes(current, next)
		}
		if changed != "" {
			err = set(next)
		}
		switch {
		case err != nil:
			log.Error("the network policy cannot be read: the one before it stays", "error", err)
		case changed == "":
			log.Info("the network policy was read again: nothing has changed")
		default:
			current = next
			log.Info("the network policy has changed, for commands that are started from now on", "changes", changed)
		}
	}
}
