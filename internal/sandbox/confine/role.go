package confine

import (
	"github.com/execagent/execagent/internal/sandbox/supervise"
	"github.com/execagent/execagent/sandbox"
)

// role is what a process with the argument [Arg] does.
type role int

const (
	roleCommand     role = iota // starts the command and looks after it; the inner one of two inits does so too
	roleLimited                 // starts a second init for a command with limits, and looks after it
	roleConnect                 // connects to an endpoint, under the whole policy
	roleOuter                   // starts the inner init of a supervised command, and looks after it
	roleApart                   // is the second init, and becomes the command with limits
	roleBecome                  // becomes a command whose files are not confined
	roleConnectOnly             // connects to an endpoint where only the network is restricted
	roleBind                    // binds one name of the file system (package supervise)
)

// decideRole decides the role of this process, from the arguments and the config, and returns both.
// It calls open to read the config, except for a process that binds a name, which has no config
// and other descriptors.
func decideRole(args []string, open func(args []string) (*config, error)) (role, *config, error) {
	if supervise.IsBind(args) {
		return roleBind, nil, nil
	}
	c, err := open(args)
	if err != nil {
		return 0, nil, err
	}
	switch {
	case !c.Policy.Confined && c.connects():
		return roleConnectOnly, c, nil
	case !c.Policy.Confined && c.Rules == nil:
		return roleBecome, c, nil
	case isMarked(args, apart):
		return roleApart, c, nil
	case c.Backend.Has(sandbox.Supervised) && !isMarked(args, inner):
		return roleOuter, c, nil
	case c.connects():
		return roleConnect, c, nil
	case c.Limits != (Limits{}):
		return roleLimited, c, nil
	}
	return roleCommand, c, nil
}

// isMarked reports whether args are those of an init that another init has started with the mark.
// An empty argument comes after the mark, so that no other command line looks like this.
func isMarked(args []string, mark string) bool {
	return len(args) == 4 && args[2] == mark && args[3] == ""
}
