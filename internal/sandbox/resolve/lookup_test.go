package resolve

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestResolveIsBounded: the bound of steps is for all paths together, not for
// each.
func TestResolveIsBounded(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "d/x/", "plain/")
	// To follow one link takes 1400 names, and more: each ".." is looked up from
	// the root again.
	walk := strings.Repeat("x/../", 700)
	for i := range 10 {
		sandboxtest.Tree(t, base, fmt.Sprintf("d/%d -> %s%d", i, walk, i+1))
	}
	sandboxtest.Tree(t, base, "d/10/")
	sandboxtest.Tree(t, base, "d/one -> "+walk+"10")

	r := rig.Value(resolve(t, asked(base, "write $/plain", "read $/d/one")))
	rig.Is(t, r.Policy.Access(base+"/d/10"), sandbox.Read, "the long way leads to")
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("read $/d/0/%d", i))
	}
	rig.Is(t, rig.Err(resolve(t, asked(base, lines...))), errBudget, "a thousand paths through ten long links")
}

// TestResolveMany: a large but ordinary policy stays within the bounds.
func TestResolveMany(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "a/b/c/d/e/f/g/h/i/")
	var lines []string
	for i := range 1000 {
		sandboxtest.Tree(t, base, fmt.Sprintf("a/b/c/d/e/f/g/h/i/%d/", i))
		lines = append(lines, fmt.Sprintf("write $/a/b/c/d/e/f/g/h/i/%d", i))
	}
	r := rig.Value(resolve(t, asked(base, lines...)))
	rig.Is(t, r.Descriptors(), len(lines), "descriptors")
	r.Close()
	rig.Is(t, r.Descriptors(), 0, "descriptors after Close")
}

func TestResolveWithin(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "a/", "b/", "c/")
	policy, err := asked(base, "read $/a", "read $/b", "read $/c").Compile()
	rig.Must(t, err)
	err = rig.Err(Within(policy, 2))
	rig.Is(t, strings.Contains(fmt.Sprint(err), "more than 2 paths that exist"), true, "%v", err)
	r := rig.Value(Within(policy, 3))
	r.Close()
}

// TestResolveLongPath: by a symlink, short paths lead to objects, existing and
// missing, whose canonical path is longer than the kernel takes.
func TestResolveLongPath(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "top/")
	name := strings.Repeat("n", 250)
	rig.Must(t, os.MkdirAll(filepath.Join(base, "top", filepath.Join(slices.Repeat([]string{name}, 10)...)), 0o755))
	sandboxtest.Tree(t, base, "far -> top/"+strings.Join(slices.Repeat([]string{name}, 10), "/"))
	for _, last := range []string{name, "missing"} {
		long := "$/far/" + strings.Join(slices.Repeat([]string{last}, 12*250/len(last)), "/")
		rig.Is[error](t, rig.Err(resolve(t, asked(base, "read "+long))), unix.ENAMETOOLONG, "%s...", last)
	}
}
