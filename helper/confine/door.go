package confine

import (
	"os"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/resolve"
)

// Door is the one way into a sandbox, for the commands of an agent or for a
// single one: [Door.Enter] goes through all steps from what is asked for to a
// command that can be started, in their order. Each fails closed: with an error
// nothing of the command may run. The methods may run at once.
type Door struct {
	// Host returns what can be enforced here. It is asked only for what restricts something.
	Host func() (sandbox.Host, error)
	// RequireNamespaces has Landlock and a filter alone not do where files are restricted.
	RequireNamespaces bool
	// Refuses returns why a policy is not served here, whatever the host can do; nil refuses none.
	Refuses func(*sandbox.Policy) error
	// Private are files and directories that nothing confined may see.
	Private []string
	// Served remembers what commands could write, and refuses policies by that. [Door.Choose] needs
	// none.
	Served *resolve.Served
	// Placeholders returns what holds protected names that do not exist. It is asked only where
	// there are some; its error says why they cannot be held. [Door.Choose] needs none.
	Placeholders func() (*hold.Placeholders, error)
	// Limits are those of every command.
	Limits Limits
	// AgentPorts are as in [Command].
	AgentPorts []uint16
}

// Choose decides which layers enforce the policy, exactly or not at all. It takes nothing from the
// host and leaves nothing there.
func (d *Door) Choose(policy *sandbox.Policy) (sandbox.Backend, error) {
	if policy.RestrictsNothing() {
		return sandbox.Backend{}, nil
	}
	if d.Refuses != nil {
		if err := d.Refuses(policy); err != nil {
			return sandbox.Backend{}, err
		}
	}
	host, err := d.Host()
	if err != nil {
		return sandbox.Backend{}, err
	}
	return policy.Backend(host, d.RequireNamespaces)
}

// Enter chooses the layers that enforce the profile and takes what they need. The caller releases
// what it returns once nothing of the command runs any more.
func (d *Door) Enter(profile sandbox.Profile) (*Held, error) {
	profile.Private = d.Private
	policy, err := profile.Compile()
	if err != nil {
		return nil, err
	}
	backend, err := d.Choose(policy)
	if err != nil {
		return nil, err
	}
	h := &Held{
		Layers:  backend.Names(),
		command: Command{Policy: policy, Backend: backend, Limits: d.Limits, AgentPorts: d.AgentPorts, Argv0: os.Args[0]},
	}
	if policy.Confined {
		err = d.hold(h)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// hold looks the paths of the policy up, asks whether earlier commands could
// have prepared them, and keeps names from coming into being that the policy
// protects.
func (d *Door) hold(h *Held) error {
	resolved, err := resolve.Policy(h.command.Policy)
	if err != nil {
		return err
	}
	defer resolved.Close()
	if err := d.Served.Check(resolved); err != nil {
		return err
	}
	d.Served.Note(resolved)
	h.command.Granted = resolved.Granted()
	// Without a view nothing may be written at all, so nothing can come into being.
	if !h.command.Backend.Has(sandbox.MountNS) || len(resolved.Missing) == 0 {
		return nil
	}
	placeholders, err := d.Placeholders()
	if err != nil {
		return err
	}
	h.free, err = placeholders.Hold(resolved.Missing)
	return err
}

// Held is a sandbox that one command can be started in, and what it takes while that runs.
type Held struct {
	// Layers are the names of the layers on the wire. It is not nil.
	Layers []string

	command Command
	refusal error
	free    func() // may be called often
}

// Refused is a sandbox in which nothing is run: what is started in it says why in one
// line on stderr and ends with code 101.
func Refused(why error) *Held { return &Held{Layers: []string{}, refusal: why} }

// Unconfined tells that nothing is restricted: the command is to be started as any other, without
// [Held.Stage].
func (h *Held) Unconfined() bool { return h.refusal == nil && h.command.Policy.RestrictsNothing() }

// Stage prepares a program to be started in the sandbox, as the leader of a session: it is
// [procs.Spec.Stage]. What cannot be described to an init is refused by the stage, not by an error.
func (h *Held) Stage(p procs.Program) (*procs.Stage, error) {
	stage, err := h.prepare(p, true)
	if err != nil {
		stage = refuse(os.Args[0], err)
	}
	return stage, nil
}

// prepare describes the program to an init.
func (h *Held) prepare(p procs.Program, newSession bool) (*procs.Stage, error) {
	if h.refusal != nil {
		return nil, h.refusal
	}
	c := h.command
	c.Argv, c.Arg0, c.Env, c.Dir, c.TTY, c.NewSession = p.Argv, p.Arg0, p.Env, p.Dir, p.TTY, newSession
	return c.Prepare()
}

// Release gives back what the sandbox took, once nothing runs in it any more.
// It may be called often, also on nil.
func (h *Held) Release() {
	if h == nil || h.free == nil {
		return
	}
	h.free()
}
