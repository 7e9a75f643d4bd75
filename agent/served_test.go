package agent

import (
	"os"
	"strings"
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
	if o := c.runIn("plant", plant, b.repo, workspace(b.repo)); o.exit != 0 {
		t.Fatalf("exit %d, %s", o.exit, o.output)
	}
	if err := write(b.repo+"/pkg/planted", workspace(b.repo+"/pkg")); err == nil || !strings.Contains(err.Error(), "an earlier command could have made") {
		t.Errorf("a file request: %v", err)
	}
	o := c.runIn("use", "echo x > planted", "/", workspace(b.repo+"/pkg"))
	if o.exit != 101 || !strings.Contains(o.output, b.repo+"/pkg -> "+b.out) {
		t.Errorf("exit %d, %s", o.exit, o.output)
	}
	o = c.runIn("use in place", "echo x > planted", b.repo, workspace(b.repo+"/pkg"))
	if o.exit != 101 {
		t.Errorf("exit %d, %s", o.exit, o.output)
	}
	if entries, err := os.ReadDir(b.out); err != nil || len(entries) != 1 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
	if o := c.runIn("own link", "echo x > "+b.root+"/home/src/new", "/", workspace(b.root+"/home/src")); o.exit != 0 {
		t.Errorf("a link of the user's own: exit %d, %s", o.exit, o.output)
	}
	rig.Check(t, write(b.root+"/home/src/newer", workspace(b.root+"/home/src")))
}
