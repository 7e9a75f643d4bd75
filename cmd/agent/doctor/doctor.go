// Package doctor finds out what a host can enforce, and says how to get what
// is missing. Nothing is inferred from versions: each layer is tried in a
// process that ends at once, each kind of policy is given to what serves
// requests under it. Linux only.
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
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/files"
	"github.com/execagent/execagent/helper/probe"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// Diagnosis is what agent doctor finds out, and with --json prints. Members
// keep their names and meaning; there may be more one day.
type Diagnosis struct {
	// Enforceable tells whether all policies below are, for processes and for
	// file requests: whether the exit code is 0.
	Enforceable bool     `json:"enforceable"`
	Layers      []Layer  `json:"layers"`
	Policies    []Policy `json:"policies"`
	// Notes are about what no policy depends on.
	Notes []Note `json:"notes"`
}

// Layer is one layer that processes can be confined by.
type Layer struct {
	Name  string `json:"name"`  // "userns", "mountns", "pidns", "ipcns", "netns", "landlock", "seccomp", "usernotify"
	OK    bool   `json:"ok"`    // it was seen to work
	ABI   int    `json:"abi"`   // of Landlock, else 0
	Tried string `json:"tried"` // what was done to find out
	// Error and Remedy are of a layer that is missing, else empty.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// Policy is what becomes of one kind of policy on this host.
type Policy struct {
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Processes   Enforcement `json:"processes"`
	Files       Enforcement `json:"files"` // file requests
}

// Enforcement tells whether something is enforced exactly; if not, it is
// refused.
type Enforcement struct {
	OK     bool     `json:"ok"`
	Layers []string `json:"layers"` // as sandboxLayers of process/start; none for files
	// Error and Remedy are of what cannot be enforced, else empty.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// Note is something that helps, or that one should know.
type Note struct {
	Name string `json:"name"` // "cgroups", "landlock", "procfs", "state"
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// Config says for which agent a diagnosis is made.
type Config struct {
	// Argv0 is the program's name, with which helpers are started: /proc shows it.
	Argv0 string
	// RequireNamespaces tells that Landlock and seccomp alone will not do.
	RequireNamespaces bool
	// NoState is why records of placeholders have no place; nil if they have one.
	NoState error
}

// Diagnose tries everything. It takes some tenths of a second, and fails only
// where nothing can be tried; what is missing is no error but a part of the
// result.
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
		p := Policy{
			Name: e.name, Description: e.description,
			Processes: processEnforcement(policy, host, cfg), Files: fileEnforcement(ctx, pool, policy),
		}
		d.Enforceable = d.Enforceable && p.Processes.OK && p.Files.OK
		d.Policies = append(d.Policies, p)
	}
	return d, nil
}

// layersOf lists the layers of a host.
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

// example is a policy that clients ask for.
type example struct {
	name, description string
	profile           sandbox.Profile
}

// examples has one policy for each of the ways to be enforced or not. Whether
// the workspace exists makes no difference.
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
		{"workspace-write", "write below workspaces and /tmp, but for names like .git; no network", confined(sandbox.NetworkRestricted, write...)},
		{"workspace-write-network", "the same with the host's network", confined(sandbox.NetworkEnabled, write...)},
		{"deny", "the same as workspace-write, but some paths and patterns denied", confined(sandbox.NetworkRestricted, append(slices.Clone(write),
			sandbox.Entry{Place: sandbox.PlacePath, Path: workspace + "/secrets", Access: sandbox.Denied},
			sandbox.Entry{Place: sandbox.PlaceGlob, Path: workspace + "/**/*.env", Access: sandbox.Denied})...)},
		{"view-only", "see only the platform and a workspace, write nothing, no network", confined(sandbox.NetworkRestricted,
			sandbox.Entry{Place: sandbox.PlaceMinimal, Access: sandbox.Read},
			sandbox.Entry{Place: sandbox.PlaceProjectRoots, Access: sandbox.Read})},
		{"network-only", "all files, no network", sandbox.Profile{Kind: sandbox.External, Network: sandbox.NetworkRestricted}},
	}
}

// processEnforcement decides as process/start does, of a workspace where no
// protected name exists.
func processEnforcement(policy *sandbox.Policy, host sandbox.Host, cfg Config) Enforcement {
	door := confine.Door{Host: func() (sandbox.Host, error) { return host, nil }, RequireNamespaces: cfg.RequireNamespaces}
	backend, err := door.Choose(policy)
	if err == nil && cfg.NoState != nil && len(policy.WritableRoots()) > 0 {
		return Enforcement{Layers: []string{}, Error: "there is no place for records of placeholders", Remedy: "make one writable, or name one with --state-dir"}
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

// fileEnforcement lets a helper refuse what none of the policies allows, as it
// does for file requests. Those that restrict no file have no helper.
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
		return Enforcement{Layers: []string{}, Error: "what the policy forbids was done"}
	case !broken && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOENT)): // ENOENT where the root is hidden
		return result
	}
	return Enforcement{Layers: []string{}, Error: err.Error()}
}

// notes are about what no policy depends on.
func notes(h sandbox.Host, noState error) []Note {
	cgroups := Note{Name: "cgroups", OK: true, Text: "each confined process of a serving agent gets a control group, and terminate reaches all that is in it"}
	groups, err := procs.NewCgroups(procs.CgroupLimits{})
	if err == nil {
		err = groups.Close()
	}
	if err != nil {
		cgroups.OK, cgroups.Text = false, "confined processes get no control group of their own, and limits on them cannot be set: "+err.Error()
	}
	state := Note{Name: "state", OK: noState == nil, Text: "records of placeholders have a place"}
	if noState != nil {
		state.Text = strings.ReplaceAll(noState.Error(), "\n", "; ")
	}
	return append([]Note{cgroups}, landlockNote(h), procfsNote(h), state)
}

// landlockNote tells what a version of Landlock cannot do; landlock(7).
func landlockNote(h sandbox.Host) Note {
	const scopes, ioctls = 6, 5
	n := Note{Name: "landlock", OK: h.Landlock >= scopes, Text: fmt.Sprintf("ABI %d has all that policies need", h.Landlock)}
	switch {
	case h.Landlock == 0:
		n.Text = "there is none: namespaces and filters confine without this second wall"
	case h.Landlock < ioctls:
		n.Text = fmt.Sprintf("ABI %d confines neither ioctls of devices (5, Linux 6.10) nor signals and abstract UNIX sockets (6, Linux 6.12)", h.Landlock)
	case h.Landlock < scopes:
		n.Text = fmt.Sprintf("ABI %d does not confine signals and abstract UNIX sockets (6, Linux 6.12)", h.Landlock)
	}
	return n
}

// procfsNote tells how processes see /proc.
func procfsNote(h sandbox.Host) Note {
	n := Note{Name: "procfs", OK: h.Has(sandbox.PIDNS), Text: "processes that are confined see only themselves in /proc"}
	if !h.Has(sandbox.PIDNS) {
		n.Text = "processes that are confined see others in /proc, with command line and status; they can neither signal them nor read their memory, environment and descriptors"
	}
	return n
}

// Print writes it for people.
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

// printMissing says what failed, and each remedy once.
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
	for _, p := range d.Policies {
		if !p.Processes.OK {
			fmt.Fprintf(page, "\n%s is refused for processes: %s\n", p.Name, p.Processes.Error)
		}
		if !p.Files.OK {
			fmt.Fprintf(page, "\n%s is refused for file requests: %s\n", p.Name, p.Files.Error)
		}
	}
}

func state(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}
