// Package doctor finds out which policies a host can enforce, and how to get the
// layers of the sandbox that are missing. It tries each layer in a process, and an
// example of each kind of policy, because versions say too little. Linux only.
//
// [Diagnose] returns plain facts. Their JSON names are a promise to scripts;
// [Diagnosis.Print] is for people and promises nothing.
package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// Diagnosis is the result of [Diagnose], and agent doctor --json prints it. Members keep their
// names and meaning; later versions may add members.
type Diagnosis struct {
	// Enforceable reports whether every policy below can be enforced, for processes
	// and for file requests. Then agent doctor ends with 0.
	Enforceable bool    `json:"enforceable"`
	Layers      []Layer `json:"layers"`
	Policies    []Row   `json:"policies"`
	// Proxies are the ways to confine a command to a proxy. One of them is enough.
	Proxies []Proxy `json:"proxies"`
	// Notes are about things on which no policy depends.
	Notes []Note `json:"notes"`
}

// Layer is one layer of the sandbox, and whether this host has it.
type Layer struct {
	Name  string `json:"name"`  // "userns", "mountns", "pidns", "procfs", "ipcns", "netns", "supervised", "landlock", "seccomp", "usernotify", "pidfd"
	OK    bool   `json:"ok"`    // it worked when it was tried
	ABI   int    `json:"abi"`   // the version of Landlock; 0 for other layers
	Tried string `json:"tried"` // how the layer was tried
	// Error says why the layer is missing, Remedy how to get it. Both are empty if
	// the layer is there.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// Row says whether this host can enforce one kind of policy.
type Row struct {
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Processes   Enforcement `json:"processes"`
	Files       Enforcement `json:"files"` // of file requests
}

// Enforcement says whether a policy is enforced. Otherwise requests with that
// policy are refused.
type Enforcement struct {
	OK bool `json:"ok"` // enforced
	// Layers are the layers that the answer to process/start would name in sandboxLayers. For file
	// requests it is empty, and never nil.
	Layers []string `json:"layers"`
	// Error says why the policy cannot be enforced, Remedy how to change that. Remedy is empty if
	// no remedy is known; both are empty if OK.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// Note is about something that improves confinement, or about a gap that an operator
// should know.
type Note struct {
	Name string `json:"name"` // "cgroups", "landlock", "procfs", "state", "execPolicyTree"
	OK   bool   `json:"ok"`   // this host has it, or has no such gap
	Text string `json:"text"`
}

// Config describes the agent for which a diagnosis is made.
type Config struct {
	// Argv0 is the name under which /proc shows the helpers that Diagnose starts.
	Argv0 string
	// Operator has the operator's requirements for the layers.
	Operator sandbox.Operator
	// NoState says why there is no folder for records of placeholders; nil if
	// there is one.
	NoState error
}

// Diagnose tries everything, which takes some tenths of a second. Missing layers are
// in the result; an error means that nothing could be tried.
func Diagnose(ctx context.Context, cfg Config) (*Diagnosis, error) {
	host, err := probe.Host(ctx, cfg.Argv0)
	if err != nil {
		return nil, err
	}
	pool := files.NewPool(files.Config{Argv0: cfg.Argv0, Max: len(examples())})
	defer pool.Close()
	d := &Diagnosis{Enforceable: true, Layers: layersOf(host), Notes: notes(host, cfg.NoState)}
	for _, e := range examples() {
		policy, err := e.profile.Compile()
		if err != nil {
			return nil, fmt.Errorf("compiling the policy %q: %w", e.name, err)
		}
		p := Row{
			Name: e.name, Description: e.description,
			Processes: processEnforcement(policy, host, cfg), Files: fileEnforcement(ctx, pool, policy),
		}
		d.Enforceable = d.Enforceable && p.Processes.OK && p.Files.OK
		d.Policies = append(d.Policies, p)
	}
	d.Notes = append(d.Notes, judgedNote())
	d.Proxies = proxies(ctx, host, cfg)
	d.Enforceable = d.Enforceable && slices.ContainsFunc(d.Proxies, func(p Proxy) bool { return p.OK })
	return d, nil
}

// judgedNote says whether rules about commands can be enforced for every executed program.
func judgedNote() Note {
	n := Note{Name: "execPolicyTree", OK: true, Text: "rules about commands can be enforced for every program that a command executes (--exec-policy-enforce tree). " +
		"Rules about names are only a guard rail: the security boundary is the sandbox"}
	if err := confine.TryJudged(nil); err != nil {
		n.OK, n.Text = false, "rules about commands can be enforced only for the commands that clients start (--exec-policy-enforce start): "+err.Error()
	}
	return n
}

// layersOf lists all layers, with the findings about each.
func layersOf(h sandbox.Host) []Layer {
	var layers []Layer
	for _, l := range sandbox.AllLayers() {
		found := Layer{Name: l.String(), OK: h.Has(l), Tried: l.Tried(), Error: h.Reasons[l].Error, Remedy: h.Reasons[l].Remedy}
		if l == sandbox.Landlock {
			found.ABI = h.Landlock
		}
		layers = append(layers, found)
	}
	return layers
}

// example is a policy of a kind that clients request.
type example struct {
	name, description string
	profile           sandbox.Profile
}

// examples returns one policy of each kind that clients request. The workspace need not exist.
func examples() []example {
	const workspace = "/workspace"
	root := sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read}
	write := []sandbox.Entry{
		root,
		{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write},
		{Place: sandbox.PlaceSlashTmp, Access: sandbox.Write},
	}
	confined := func(network sandbox.Network, entries ...sandbox.Entry) sandbox.Profile {
		return sandbox.Profile{Entries: entries, Network: network, Cwd: workspace, WorkspaceRoots: []string{workspace}}
	}
	return []example{
		{"read-only", "read everything, write nothing, no network", confined(sandbox.NetworkRestricted, root)},
		{"workspace-write", "write in workspaces and /tmp, except to names like .git; no network", confined(sandbox.NetworkRestricted, write...)},
		{"workspace-write-network", "like workspace-write, with the host's network", confined(sandbox.NetworkEnabled, write...)},
		{"deny", "like workspace-write, with some paths and patterns denied", confined(sandbox.NetworkRestricted, append(slices.Clone(write),
			sandbox.Entry{Place: sandbox.PlacePath, Path: workspace + "/secrets", Access: sandbox.Denied},
			sandbox.Entry{Place: sandbox.PlaceGlob, Path: workspace + "/**/*.env", Access: sandbox.Denied})...)},
		{"view-only", "see only the system's own files and a workspace, write nothing, no network", confined(sandbox.NetworkRestricted,
			sandbox.Entry{Place: sandbox.PlaceMinimal, Access: sandbox.Read},
			sandbox.Entry{Place: sandbox.PlaceProjectRoots, Access: sandbox.Read})},
		{"network-only", "all files, no network", sandbox.Profile{Kind: sandbox.External, Network: sandbox.NetworkRestricted}},
	}
}

// processEnforcement returns what process/start would do with a policy, in a workspace where names
// like .git do not exist. Such names need placeholders, and placeholders need a folder for their
// records.
func processEnforcement(policy *sandbox.Policy, host sandbox.Host, cfg Config) Enforcement {
	door := confine.Door{Host: func() (sandbox.Host, error) { return host, nil }, Operator: cfg.Operator}
	backend, err := door.Choose(policy)
	if err == nil && cfg.NoState != nil && len(policy.WritableRoots()) > 0 {
		return Enforcement{Layers: []string{}, Error: "there is no folder for records of placeholders", Remedy: "make one of the folders writable, or name another with --state-dir"}
	}
	if err == nil {
		return Enforcement{OK: true, Layers: backend.Names()}
	}
	result := Enforcement{Layers: []string{}, Error: err.Error()}
	if missing, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		result.Error, result.Remedy = missing.Layer+" is missing: "+missing.Reason, missing.Remedy
	}
	return result
}

// fileEnforcement starts a helper as for a file request, and tries to create a directory below /,
// which none of the policies allows. The policy is enforced if the helper refuses. A policy that
// restricts no files has no helper; its requests are always served.
func fileEnforcement(ctx context.Context, pool *files.Pool, policy *sandbox.Policy) Enforcement {
	result := Enforcement{OK: true, Layers: []string{}}
	if !policy.Confined {
		return result
	}
	fs, err := pool.Files(ctx, policy)
	if err == nil {
		err = fs.CreateDirectory(ctx, fmt.Sprintf("/.agent-doctor-%d", os.Getpid()), false, fsops.FollowLinks)
	}
	_, broken := errors.AsType[*files.HelperError](err)
	switch {
	case err == nil:
		return Enforcement{Layers: []string{}, Error: "an action that the policy forbids succeeded"}
	case !broken && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOENT)):
		return result // refused; ENOENT is the answer where the policy hides the root
	}
	return Enforcement{Layers: []string{}, Error: err.Error()}
}

// notes returns the notes on cgroups, landlock, procfs and state.
func notes(h sandbox.Host, noState error) []Note {
	cgroups := Note{Name: "cgroups", OK: true, Text: "each confined command of a serving agent gets its own control group, and terminate ends all processes in it"}
	groups, err := procs.NewCgroups(procs.CgroupLimits{})
	if err == nil {
		err = groups.Close()
	}
	if err != nil {
		cgroups.OK, cgroups.Text = false, "confined commands get no control group of their own, so limits on them cannot be set: "+err.Error()
	}
	state := Note{Name: "state", OK: noState == nil, Text: "there is a folder for records of placeholders"}
	if noState != nil {
		state.Text = strings.ReplaceAll(noState.Error(), "\n", "; ")
	}
	return append([]Note{cgroups}, landlockNote(h), procfsNote(h), state)
}

// The first versions of Landlock that confine signals and abstract UNIX sockets,
// and ioctls of devices (landlock(7)).
const scopes, ioctls = 6, 5

// landlockNote says what the host's version of Landlock does not confine.
func landlockNote(h sandbox.Host) Note {
	n := Note{Name: "landlock", OK: h.Landlock >= scopes, Text: fmt.Sprintf("ABI %d has everything that policies need", h.Landlock)}
	switch {
	case h.Landlock == 0:
		n.Text = "this host has no Landlock: namespaces and filters confine commands without this second barrier"
	case h.Landlock < ioctls:
		n.Text = fmt.Sprintf("ABI %d does not confine ioctls of devices (that needs ABI 5, Linux 6.10), signals and abstract UNIX sockets (ABI 6, Linux 6.12)", h.Landlock)
	case h.Landlock < scopes:
		n.Text = fmt.Sprintf("ABI %d does not confine signals and abstract UNIX sockets (that needs ABI 6, Linux 6.12)", h.Landlock)
	}
	return n
}

// procfsNote says what confined processes see of other processes in /proc.
func procfsNote(h sandbox.Host) Note {
	n := Note{Name: "procfs", OK: h.Has(sandbox.Procfs), Text: "confined commands see only their own processes in /proc"}
	if n.OK {
		return n
	}
	n.Text = "confined commands see other processes in /proc, with command line and status, but cannot signal them or read their memory, environment and descriptors"
	if h.Has(sandbox.PIDNS) && h.Landlock < scopes {
		n.Text += "; /proc shows the host's process numbers, which differ from those that getpid(2) returns"
	}
	return n
}

// Print writes the diagnosis for people, as three tables, a list of the missing parts with the
// reasons, and notes. Its form may change.
func (d *Diagnosis) Print(w io.Writer) error {
	var page bytes.Buffer
	const layer, policy = "%-12s%-9s%s\n", "%-25s%-11s%-15s%s\n"
	fmt.Fprintf(&page, layer, "LAYER", "STATE", "TRIED")
	for _, l := range d.Layers {
		name := l.Name
		if l.ABI > 0 {
			name = fmt.Sprintf("%s:%d", l.Name, l.ABI)
		}
		fmt.Fprintf(&page, layer, name, state(l.OK, "ok", "missing"), l.Tried)
	}
	const proxy = "%-24s%-9s%s\n"
	fmt.Fprintf(&page, "\n"+proxy, "PROXY", "STATE", "TRIED")
	for _, p := range d.Proxies {
		fmt.Fprintf(&page, proxy, p.Name, state(p.OK, "ok", "missing"), p.Tried)
	}
	fmt.Fprintf(&page, "\n"+policy, "POLICY", "PROCESSES", "FILE REQUESTS", "LAYERS OF PROCESSES")
	for _, p := range d.Policies {
		fmt.Fprintf(&page, policy, p.Name, state(p.Processes.OK, "enforced", "refused"), state(p.Files.OK, "enforced", "refused"),
			strings.Join(p.Processes.Layers, " "))
	}
	d.printMissing(&page)
	fmt.Fprintln(&page, "\nNOTES")
	for _, n := range d.Notes {
		fmt.Fprintf(&page, "%s: %s\n", n.Name, n.Text)
	}
	_, err := w.Write(page.Bytes())
	return err
}

// printMissing lists the missing layers, grouped by remedy so that each remedy is printed once.
// Then it lists the proxies that do not work, and the refused policies.
func (d *Diagnosis) printMissing(page *bytes.Buffer) {
	var remedies []string
	missing := map[string][]string{}
	for _, l := range d.Layers {
		if l.OK {
			continue
		}
		why := fmt.Sprintf("%s: %s", l.Name, l.Error)
		if len(missing[l.Remedy]) == 0 {
			remedies = append(remedies, l.Remedy)
		}
		missing[l.Remedy] = append(missing[l.Remedy], why)
	}
	for _, remedy := range remedies {
		fmt.Fprintf(page, "\nMISSING\n%s\nTo get that: %s.\n", strings.Join(missing[remedy], "\n"), remedy)
	}
	for _, p := range d.Proxies {
		if !p.OK {
			fmt.Fprintf(page, "\n%s does not work: %s\n", p.Name, p.Error)
			if p.Remedy != "" && !slices.Contains(remedies, p.Remedy) {
				fmt.Fprintf(page, "To get that: %s.\n", p.Remedy)
			}
		}
	}
	for _, p := range d.Policies {
		if !p.Processes.OK {
			fmt.Fprintf(page, "\n%s is refused for processes: %s\n", p.Name, p.Processes.Error)
		}
		if !p.Files.OK {
			fmt.Fprintf(page, "\n%s is refused for file requests: %s\n", p.Name, p.Files.Error)
		}
	}
}

// state returns yes or no.
func state(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}
