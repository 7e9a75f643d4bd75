package policyfile

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/approval"
)

// FollowRules reads the rules of an agent again at each signal. stop ends this, and waits until it
// has ended. Without rules it does nothing.
func FollowRules(p *agent.ExecPolicy, signals <-chan os.Signal, log *slog.Logger) (stop func()) {
	if p == nil {
		return func() {}
	}
	return follow(signals, func() {
		if err := flagged(p.Reread()); err != nil {
			log.Error(approval.NotReread, "error", err)
		}
	})
}

// FollowNetwork reads the file of the policy p again at each signal. stop ends this, and waits
// until it has ended. FollowNetwork passes a changed policy to set, and logs the changes. A file
// that cannot be read changes nothing. Without a policy it does nothing.
func FollowNetwork(p *agent.NetworkPolicy, path string, signals <-chan os.Signal, set func(*agent.NetworkPolicy) error, log *slog.Logger) (stop func()) {
	if p == nil {
		return func() {}
	}
	return follow(signals, func() {
		next, err := ReadNetwork(path)
		changed := ""
		if err == nil {
			changed = changes(p, next)
		}
		if changed != "" {
			err = set(next)
		}
		switch {
		case err != nil:
			log.Error("the new network policy cannot be read, so the old one stays in force", "error", err)
		case changed == "":
			log.Info("the network policy was read again: nothing has changed")
		default:
			p = next
			log.Info("the network policy has changed; it holds for running commands too, except for upstream proxies and masking", "changes", changed)
		}
	})
}

// follow calls reread at each signal. stop ends this, and waits until it has ended.
func follow(signals <-chan os.Signal, reread func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				reread()
			}
		}
	})
	return func() {
		cancel()
		following.Wait()
	}
}
