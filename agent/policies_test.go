package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// sandboxOf reads a sandbox as a request brings it.
func sandboxOf(t testing.TB, s object) *protocol.Sandbox {
	t.Helper()
	var p protocol.PathParams
	rig.Must(t, protocol.UnmarshalParams(rig.Value(json.Marshal(object{"path": "file:///", "sandbox": s})), &p))
	return p.Sandbox
}

// TestPoliciesAreKept: a policy is compiled once as long as it is kept, what is kept is bounded in
// number and in bytes, and the policy that was not used for longest goes first.
func TestPoliciesAreKept(t *testing.T) {
	t.Parallel()
	a := newHarness(t, Config{}).agent
	compiled := 0
	compile := func(s *protocol.Sandbox) (*sandbox.Policy, error) {
		compiled++
		return a.filePolicy(s)
	}
	small := func(i int) *protocol.Sandbox {
		return sandboxOf(t, managed("restricted", at(fmt.Sprint("/", i), "read")))
	}
	large := func(i int) *protocol.Sandbox {
		var entries []object
		for j := range 700 {
			entries = append(entries, at(fmt.Sprint("/", i, "/", j), "read"))
		}
		return sandboxOf(t, managed("restricted", entries...))
	}
	var p policies
	get := func(s *protocol.Sandbox, compiles int) {
		t.Helper()
		before := compiled
		policy, err := p.of(s, compile)
		rig.Must(t, err)
		rig.Is(t, policy != nil, true, "there is a policy")
		rig.Is(t, compiled-before, compiles, "times compiled")
		bytes := 0
		for _, k := range p.kept {
			bytes += k.bytes
		}
		if len(p.kept) > maxPolicies || p.bytes > maxPolicyBytes || p.bytes != bytes {
			t.Errorf("%d policies of %d bytes are kept as %d bytes", len(p.kept), bytes, p.bytes)
		}
	}
	for i := range maxPolicies {
		get(small(i), 1)
	}
	for i := range maxPolicies {
		get(small(i), 0)
	}
	get(small(maxPolicies), 1) // in the place of 0
	get(small(1), 0)
	get(small(0), 1) // in the place of 2
	get(small(1), 0)
	get(small(2), 1)
	get(large(1), 1)
	get(large(1), 0)
	get(large(2), 1)
	get(large(3), 1)
	get(large(4), 1)
	get(large(1), 1)

	// One whose text is too long, and one with a short text and many rules.
	var entries, subpaths []object
	for i := range 2000 {
		entries = append(entries, at(fmt.Sprint("/", i), "read"))
	}
	for i := range 60 {
		subpaths = append(subpaths, object{"path": object{"type": "special", "value": object{"kind": "project_roots", "subpath": fmt.Sprint(i)}}, "access": "read"})
	}
	var roots []string
	for i := range 200 {
		roots = append(roots, uri(fmt.Sprint("/", i)))
	}
	product := managed("restricted", subpaths...)
	product["cwd"], product["workspaceRoots"] = "file:///", roots
	for _, tooLarge := range []object{managed("restricted", entries...), product} {
		get(sandboxOf(t, tooLarge), 1)
		get(sandboxOf(t, tooLarge), 1)
	}
	get(large(1), 0)

	unread := protocol.Sandbox{Permissions: small(1).Permissions, WindowsSandboxLevel: protocol.WindowsSandboxDisabled}
	get(&unread, 1)
	get(&unread, 1)

	before := compiled
	for range 2 {
		_, err := p.of(sandboxOf(t, managed("restricted", special("project_roots", "read"))), compile)
		rig.Is(t, wantsCwd(err), true, "without a cwd: %v", err)
		// Everything can be written: no file is restricted.
		if policy, err := p.of(sandboxOf(t, managed("restricted", special("root", "write"))), compile); policy != nil || err != nil {
			t.Error(policy, err)
		}
	}
	rig.Is(t, compiled-before, 3, "times compiled, for an error twice and no policy twice")
}

// TestKeptPolicyCostsNothing: to find a policy that is kept takes no memory, so it is neither
// compiled nor hashed.
func TestKeptPolicyCostsNothing(t *testing.T) {
	a := newHarness(t, Config{}).agent
	s := sandboxOf(t, managed("restricted", special("root", "read")))
	var p policies
	rig.Is(t, testing.AllocsPerRun(100, func() { _, _ = p.of(s, a.filePolicy) }), 0, "allocations")
}

func wantsCwd(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	return ok && e.Code == protocol.CodeInvalidParams && strings.HasPrefix(e.Message, "sandbox.cwd: ")
}

// TestKeptPolicySeesTheHost: a policy that is kept freezes nothing of the host: where its paths lead
// is looked up for every request.
func TestKeptPolicySeesTheHost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newHarness(t, Config{}).attach("")
	link := b.root + "/shown"
	show := func(target string) {
		t.Helper()
		_ = os.Remove(link) // the first time there is none
		rig.Must(t, os.Symlink(target, link))
	}
	policy := managed("restricted", at(link, "read"))
	read := func(path string) error {
		return c.call("fs/readFile", object{"path": uri(path), "sandbox": policy}, nil)
	}
	for range 2 {
		show(b.repo)
		rig.Is(t, read(b.repo+"/a.txt"), nil, "a file of the repository that is shown")
		rig.Is(t, read(b.out+"/f") != nil, true, "a file that is not shown is refused")
		show(b.out)
		rig.Is(t, read(b.out+"/f"), nil, "a file of the other directory that is shown")
		rig.Is(t, read(b.repo+"/a.txt") != nil, true, "a file that is shown no longer is refused")
	}
}
