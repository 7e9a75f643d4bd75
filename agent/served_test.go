package agent

import (
	"os"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRootBecomesLink: a command replaces a directory by a symbolic link. A later
// policy names that directory as a root. Neither a command nor a file request under
// this policy sees what the link leads to.
func TestRootBecomesLink(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newHarness(t, Config{StateDir: t.TempDir() + "/state"}).attach("")
	workspace := func(root string) object { return managed("restricted", special("root", "read"), at(root, "write")) }
	for _, dir := range []string{b.repo + "/pkg", b.root + "/home", b.root + "/store"} {
		rig.Must(t, os.Mkdir(dir, 0o755))
	}
	rig.Must(t, os.Symlink(b.root+"/store", b.root+"/home/src"))
	write := func(path string, sandbox object) error {
		return c.call("fs/writeFile", object{"path": uri(path), "dataBase64": "eA==", "sandbox": sandbox}, nil)
	}
	// Before: the directory itself, and a link of the user's own.
	rig.Must(t, write(b.repo+"/pkg/before", workspace(b.repo+"/pkg")))
	plant := "mv pkg pkg.old && ln -s " + b.out + " pkg"
	c.runIn("plant", plant, b.repo, workspace(b.repo)).wants(t, "plant", 0, "")
	wantText(t, "a file request", write(b.repo+"/pkg/planted", workspace(b.repo+"/pkg")), "an earlier command could have made")
	use := "echo x > planted"
	c.runIn("use", use, "/", workspace(b.repo+"/pkg")).wants(t, "use", 101, b.repo+"/pkg -> "+b.out)
	c.runIn("in place", use, b.repo, workspace(b.repo+"/pkg")).wants(t, "use in place", 101, "")
	rig.Is(t, len(rig.Value(os.ReadDir(b.out))), 1, "entries outside")
	c.runIn("own link", "echo x > "+b.root+"/home/src/new", "/", workspace(b.root+"/home/src")).wants(t, "a link of the user's own", 0, "")
	rig.Check(t, write(b.root+"/home/src/newer", workspace(b.root+"/home/src")))
}
