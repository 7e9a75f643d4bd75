package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// diagnosis is what agent doctor finds out, and with --json prints. Members
// keep their names and meaning; there may be more one day.
type diagnosis struct {
	// Enforceable tells whether all policies below are, for processes and for
	// file requests: whether the exit code is 0.
	Enforceable bool              `json:"enforceable"`
	Layers      []layerDiagnosis  `json:"layers"`
	Policies    []policyDiagnosis `json:"policies"`
	// Notes are about what no policy depends on.
	Notes []noteDiagnosis `json:"notes"`
}

// layerDiagnosis is one layer that processes can be confined by.
type layerDiagnosis struct {
	Name  string `json:"name"`  // "userns", "mountns", "pidns", "ipcns", "netns", "landlock", "seccomp", "usernotify"
	OK    bool   `json:"ok"`    // it was seen to work
	ABI   int    `json:"abi"`   // of Landlock, else 0
	Tried string `json:"tried"` // what was done to find out
	// Error and Remedy are of a layer that is missing, else empty.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// policyDiagnosis is what becomes of one kind of policy on this host.
type policyDiagnosis struct {
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Processes   enforcement `json:"processes"`
	Files       enforcement `json:"files"` // file requests
}

// enforcement tells whether something is enforced exactly; if not, it is
// refused.
type enforcement struct {
	OK     bool     `json:"ok"`
	Layers []string `json:"layers"` // as sandboxLayers of process/start; none for files
	// Error and Remedy are of what cannot be enforced, else empty.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// noteDiagnosis is something that helps, or that one should know.
type noteDiagnosis struct {
	Name string `json:"name"` // "cgroups", "landlock", "procfs"
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// runDoctor tells what can be enforced on this host. The result is the exit
// code.
func runDoctor(sys system, flags *doctorFlags) int {
	d, err := diagnose(context.Background())
	if err != nil {
		return sys.fail(err)
	}
	if flags.JSON {
		out := json.NewEncoder(sys.stdout)
		out.SetEscapeHTML(false)
		out.SetIndent("", "  ")
		err = out.Encode(d)
	} else {
		err = d.print(sys.stdout)
	}
	switch {
	case err != nil:
		return sys.fail(err)
	case !d.Enforceable:
		return exitFailure
	}
	return exitOK
}

// diagnose tries everything.
func diagnose(ctx context.Context) (*diagnosis, error) {
	host, err := helper.Probe(ctx, os.Args[0])
	if err != nil {
		return nil, err
	}
	pool := helper.NewPool(helper.Config{Argv0: os.Args[0], Max: len(examples())})
	defer pool.Close()
	d := &diagnosis{Enforceable: true, Layers: layersOf(host), Notes: notes(host)}
	for _, e := range examples() {
		policy, err := e.profile.Compile()
		if err != nil {
			return nil, fmt.Errorf("compiling the policy %q: %w", e.name, err)
		}
		p := policyDiagnosis{
			Name: e.name, Description: e.description,
			Processes: processEnforcement(policy, host), Files: fileEnforcement(ctx, pool, policy),
		}
		d.Enforceable = d.Enforceable && p.Processes.OK && p.Files.OK
		d.Policies = append(d.Policies, p)
	}
	return d, nil
}

// layersOf lists the layers of a host.
func layersOf(h sandbox.Host) []layerDiagnosis {
	layers := []layerDiagnosis{
		{Name: "userns", OK: h.UserNS, Tried: "map the own ids in a new user namespace"},
		{Name: "mountns", OK: h.MountNS, Tried: "pivot to a read-only clone of the root and write to it"},
		{Name: "pidns", OK: h.PIDNS, Tried: "mount a fresh procfs in a new pid namespace"},
		{Name: "ipcns", OK: h.IPCNS, Tried: "enter a new ipc namespace"},
		{Name: "netns", OK: h.NetNS, Tried: "enter a new network namespace"},
		{Name: "landlock", OK: h.Landlock > 0, ABI: h.Landlock, Tried: "read and create what a ruleset forbids"},
		{Name: "seccomp", OK: h.Seccomp, Tried: "make a system call that a filter forbids"},
		{Name: "usernotify", OK: h.UserNotify, Tried: "let a listener answer a system call"},
	}
	for i, field := range []string{"UserNS", "MountNS", "PIDNS", "IPCNS", "NetNS", "Landlock", "Seccomp", "UserNotify"} {
		if reason, ok := h.Reasons[field]; ok {
			layers[i].Error, layers[i].Remedy = reason.Error, reason.Remedy
		}
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

// processEnforcement decides as process/start does.
func processEnforcement(policy *sandbox.Policy, host sandbox.Host) enforcement {
	backend, err := policy.Backend(host, false)
	if err == nil {
		return enforcement{OK: true, Layers: backend.Layers()}
	}
	result := enforcement{Layers: []string{}, Error: err.Error()}
	if missing, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		result.Error, result.Remedy = missing.Layer+" is missing: "+missing.Reason, missing.Remedy
	}
	return result
}

// fileEnforcement lets a helper refuse what none of the policies allows, as it
// does for file requests. Those that restrict no file have no helper.
func fileEnforcement(ctx context.Context, pool *helper.Pool, policy *sandbox.Policy) enforcement {
	result := enforcement{OK: true, Layers: []string{}}
	if !policy.Confined {
		return result
	}
	files, err := pool.Files(policy)
	if err == nil {
		err = files.CreateDirectory(ctx, fmt.Sprintf("/.agent-doctor-%d", os.Getpid()), false, fsops.FollowLinks)
	}
	_, broken := errors.AsType[*helper.HelperError](err)
	switch {
	case err == nil:
		return enforcement{Layers: []string{}, Error: "what the policy forbids was done"}
	case !broken && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOENT)): // ENOENT where the root is hidden
		return result
	}
	return enforcement{Layers: []string{}, Error: err.Error()}
}

// notes are about what no policy depends on.
func notes(h sandbox.Host) []noteDiagnosis {
	cgroups := noteDiagnosis{Name: "cgroups", OK: true, Text: "each process gets a control group, and terminate reaches all that is in it"}
	groups, err := procs.NewCgroups(procs.CgroupLimits{})
	if err == nil {
		err = groups.Close()
	}
	if err != nil {
		cgroups.OK, cgroups.Text = false, "processes get no control group of their own, and limits on them cannot be set: "+err.Error()
	}
	return append([]noteDiagnosis{cgroups}, landlockNote(h), procfsNote(h))
}

// landlockNote tells what a version of Landlock cannot do; landlock(7).
func landlockNote(h sandbox.Host) noteDiagnosis {
	const scopes, ioctls = 6, 5
	n := noteDiagnosis{Name: "landlock", OK: h.Landlock >= scopes, Text: fmt.Sprintf("ABI %d has all that is used", h.Landlock)}
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
func procfsNote(h sandbox.Host) noteDiagnosis {
	n := noteDiagnosis{Name: "procfs", OK: h.PIDNS, Text: "processes that are confined see only themselves in /proc"}
	if !h.PIDNS {
		n.Text = "processes that are confined see the names of others in /proc, but can neither read nor signal them"
	}
	return n
}

// print writes it for people.
func (d *diagnosis) print(w io.Writer) error {
	var page bytes.Buffer
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LAYER\tSTATE\tTRIED")
	for _, l := range d.Layers {
		name := l.Name
		if l.ABI > 0 {
			name = fmt.Sprintf("%s:%d", l.Name, l.ABI)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, state(l.OK, "ok", "missing"), l.Tried)
	}
	fmt.Fprintln(table, "\nPOLICY\tPROCESSES\tFILE REQUESTS\tLAYERS OF PROCESSES")
	for _, p := range d.Policies {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.Name, state(p.Processes.OK, "enforced", "refused"), state(p.Files.OK, "enforced", "refused"),
			strings.Join(p.Processes.Layers, " "))
	}
	_ = table.Flush() // to memory
	d.printMissing(&page)
	fmt.Fprintln(&page, "\nNOTES")
	for _, n := range d.Notes {
		fmt.Fprintf(&page, "%s: %s\n", n.Name, n.Text)
	}
	_, err := w.Write(page.Bytes())
	return err
}

// printMissing says what failed, and each remedy once.
func (d *diagnosis) printMissing(page *bytes.Buffer) {
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
