package confine

import (
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// Door is the only way into a sandbox, for all commands of an agent or for a
// single one. [Door.Enter] goes through all steps, in order, from the profile
// of a request to a sandbox for one command. If a step fails, the command must
// not run. The methods may run at once, so the functions in the fields may be
// called at once.
type Door struct {
	// Host returns what can be enforced here. It is called only for a policy
	// that restricts something.
	Host func() (sandbox.Host, error)
	// Operator says which layers are acceptable where several would be exact.
	Operator sandbox.Operator
	// Refuses returns the reason why a policy is not served here, whatever the
	// host can do. If Refuses is nil, every policy is served.
	Refuses func(*sandbox.Policy) error
	// Private are files and directories that no confined command may see, in
	// addition to those of its profile.
	Private []string
	// StateDir is the folder for records of placeholders, which is private too; "":
	// there is none.
	StateDir string
	// PrivateFolders are as in [sandbox.Profile].
	PrivateFolders []string
	// KeepPrivate is as in [sandbox.Profile].
	KeepPrivate bool
	// Kept returns a folder that no confined command may write to, wherever it may
	// write around it, unless it may write everything; "": there is none. Its path
	// has no links. That alone does not show the folder. Kept may be nil.
	Kept func() string
	// Served remembers the paths that earlier commands could write, and refuses
	// a policy whose paths they could have changed. [Door.Choose] does not use
	// it.
	Served *resolve.Served
	// Placeholders returns the placeholders for protected names that do not
	// exist. It is called only if a policy has such names; its error says why
	// they cannot be held. [Door.Choose] does not use it.
	Placeholders func() (*placeholder.Placeholders, error)
	// Ceiling returns the policy that no command exceeds, whatever its profile asks for; nil: there is no
	// ceiling. The paths of the policy are looked up for each command.
	Ceiling func() (*sandbox.Policy, error)
	// Limits are the resource limits of every command.
	Limits Limits
	// AgentPorts are as in [Command].
	AgentPorts []uint16

	swept sync.Once // sweepShm was called
}

// Choose returns the layers that enforce the policy exactly, or an error. It
// takes nothing from the host and leaves nothing there.
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
	return policy.Backend(host, d.Operator)
}

// Compile returns the policy of a profile, which also hides the files that the door hides, whatever
// the profile says. It depends only on the door and the profile, and does not look at the host.
func (d *Door) Compile(profile sandbox.Profile) (*sandbox.Policy, error) {
	profile.Private = append(slices.Clip(d.Private), profile.Private...)
	if d.StateDir != "" { // a policy that grants /dev/shm shows the host's
		profile.Private = append(profile.Private, d.StateDir)
	}
	profile.PrivateFolders = append(slices.Clip(d.PrivateFolders), profile.PrivateFolders...)
	profile.KeepPrivate = profile.KeepPrivate || d.KeepPrivate
	policy, err := profile.Compile()
	if err == nil {
		policy.SharesPIDs = policy.Confined && d.Operator.InheritPIDs
	}
	if err == nil && d.Kept != nil && policy.Confined && !policy.WritesEverything() {
		keep(policy, d.Kept())
	}
	return policy, err
}

// keep makes a folder read-only in the policy. Whether the policy lets it be written can depend on
// links in the policy's paths. So the rule is added in any case, and resolving the policy drops it
// unless the directory around the folder turns out to be writable.
func keep(policy *sandbox.Policy, folder string) {
	if folder == "" {
		return
	}
	rule := sandbox.Rule{Path: folder, Access: sandbox.Read, Origin: sandbox.Protected}
	i, ruled := slices.BinarySearchFunc(policy.Rules, folder, func(r sandbox.Rule, path string) int {
		return strings.Compare(r.Path, path)
	})
	switch {
	case !ruled:
		policy.Rules = slices.Insert(policy.Rules, i, rule)
	case policy.Rules[i].Access == sandbox.Write || policy.Rules[i].Otherwise == sandbox.Write:
		policy.Rules[i] = rule
	}
}

// Enter chooses the layers that enforce the profile, and takes from the host
// what they need. The caller releases the sandbox once no process of the
// command runs any more.
func (d *Door) Enter(profile sandbox.Profile) (*Held, error) {
	asked, err := d.Compile(profile)
	policy, ceiling := asked, (*sandbox.Policy)(nil)
	if err == nil && d.Ceiling != nil {
		if ceiling, err = d.Ceiling(); err == nil {
			policy, err = d.lower(asked, ceiling)
		}
	}
	if err != nil {
		return nil, err
	}
	backend, err := d.Choose(policy)
	if err != nil {
		return nil, err
	}
	h := &Held{
		Layers:  backend.Names(),
		asked:   asked,
		ceiling: ceiling,
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

// lower returns the policy under the ceiling ([resolve.Under]). The paths of the result are canonical.
func (d *Door) lower(policy, ceiling *sandbox.Policy) (*sandbox.Policy, error) {
	resolved, err := resolve.Under(ceiling, policy, math.MaxInt)
	if err != nil {
		return nil, err
	}
	defer resolved.Close()
	// This is checked here, because canonical paths do not show through which links they were reached.
	return resolved.Policy, d.Served.Check(resolved)
}

// hold looks up the paths of the policy, and refuses the policy if earlier
// commands could have prepared the objects there. It puts placeholders at
// protected names that do not exist, so that the command cannot create them.
func (d *Door) hold(h *Held) error {
	resolved, err := resolve.Policy(h.command.Policy)
	if err != nil {
		return err
	}
	defer resolved.Close()
	if d.Ceiling != nil {
		if err := resolved.CheckWithin(h.command.Policy); err != nil {
			return err
		}
	}
	if err := d.Served.Check(resolved); err != nil {
		return err
	}
	if !h.command.Policy.WritesEverything() { // unconfined commands are not noted either
		d.Served.Note(resolved)
	}
	h.command.Granted = resolved.Granted()
	if h.command.Backend.Has(sandbox.Supervised) && !resolved.Policy.Grants(shmDir) {
		d.swept.Do(func() { sweepShm(d.shmParent()) })
		h.command.Shm, h.free, err = makeShm(d.shmParent())
		return err
	}
	// Without a view the command may write nothing at all, or a supervisor refuses
	// to create a protected name.
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

// Held is the sandbox of one command, with everything that the sandbox took
// from the host. Its methods may run at once.
type Held struct {
	// Layers are the wire's names of the layers. It is not nil.
	Layers []string

	asked   *sandbox.Policy // of the profile
	ceiling *sandbox.Policy // see Door.Ceiling; nil: there is none
	command Command         // without the program
	gate    *gate.Gate      // nil: the network is not managed
	judged  *Judged         // nil: programs are not judged
	noted   *noted          // what was refused; nil: nobody wants to know
	mu      sync.Mutex
	theirs  *os.File // leads an init to the gate; nil once an init has it
	holds   *os.File // leads an init to the gate for held connections; nil if there are none, or once an init has it
	refusal error    // the reason why nothing is run; nil: the command is run
	free    func()   // releases placeholders or shared memory, may be called often; nil: there are none
}

// Names returns the layers; none if there is no sandbox.
func (h *Held) Names() []string {
	if h == nil {
		return nil
	}
	return h.Layers
}

// Refused returns a sandbox in which nothing is run. Its stage writes the
// reason in one line on stderr and ends with code 101; [Held.Run] returns the
// error.
func Refused(why error) *Held { return &Held{Layers: []string{}, refusal: why} }

// Refusal returns the reason why nothing is run, nil if the command is run.
func (h *Held) Refusal() error { return h.refusal }

// Has reports whether the command runs in that layer.
func (h *Held) Has(l sandbox.Layer) bool { return h.command.Backend.Has(l) }

// Unconfined reports whether nothing is restricted. The caller then starts the
// command like any other, without [Held.Stage] or [Held.Run], which would
// refuse it.
func (h *Held) Unconfined() bool {
	return h.refusal == nil && h.command.Rules == nil && h.command.Policy.RestrictsNothing()
}

// HasNetwork reports whether what runs in the sandbox has the network of the host. The compiled policy
// says so, whose network need not be that of the profile.
func (h *Held) HasNetwork() bool {
	return h.refusal == nil && h.command.Policy.Network == sandbox.NetworkEnabled
}

// ReachesNamed reports whether what runs in the sandbox can reach UNIX sockets or devices that its policy names.
func (h *Held) ReachesNamed() bool {
	return h != nil && h.refusal == nil && len(h.command.Policy.Sockets)+len(h.command.Policy.Devices) > 0
}

// Impose adds resource limits to those of the door. It is called before the command is started.
func (h *Held) Impose(l Limits) { h.command.Limits = h.command.Limits.Under(l) }

// Stage prepares a program to be started in the sandbox, as the leader of a
// session: it is meant for [procs.Spec.Stage]. The error is always nil: if the
// program cannot be described to an init, the stage that Stage returns says so
// and ends with code 101.
func (h *Held) Stage(p procs.Program) (*procs.Stage, error) {
	stage, err := h.prepare(p, true, false)
	if err != nil {
		stage = refuse(os.Args[0], err)
	}
	return stage, nil
}

// prepare makes the stage that runs the program in the sandbox.
func (h *Held) prepare(p procs.Program, newSession, shellCodes bool) (*procs.Stage, error) {
	if h.refusal != nil {
		return nil, h.refusal
	}
	c := h.command
	c.Argv, c.Arg0, c.Env, c.Dir, c.TTY, c.NewSession = p.Argv, p.Arg0, p.Env, p.Dir, p.TTY, newSession
	c.ShellCodes = c.ShellCodes || shellCodes
	stage, err := c.Prepare()
	if err != nil {
		return nil, err
	}
	way, err := h.takeGate()
	if err != nil {
		stage.Close()
		return nil, err
	}
	stage.Files = append(stage.Files, way...)
	if h.judged != nil {
		stage.Files = append(stage.Files, h.judged.theirs)
	}
	if h.noted != nil {
		stage.Files = append(stage.Files, h.noted.theirs)
	}
	return stage, nil
}

// Release releases everything that the sandbox took from the host. It is called
// once nothing runs in the sandbox any more, and may be called often, also on
// nil.
func (h *Held) Release() {
	if h == nil {
		return
	}
	h.closeGate()
	h.noted.close()
	if h.free != nil {
		h.free()
	}
}
