// Package hostile has the tests in which a command does all it can to get out of its sandbox, or
// to bring down what confines it: random sequences of file calls, races with its supervisor, the
// deaths of that, and floods of calls. They run mostly where there are no namespaces
// (supervised.md 9), on a launcher that forbids them. Each has a form for each push, a longer one for
// each merge, and a whole one with the flag -hunt (make hunt).
package hostile

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

var flagHunt = flag.Bool("hunt", false, "hunt for as long as it takes (make hunt)")

// hunting returns long with the flag -hunt, else what a run of the level does.
func hunting[T any](push, merge, long T) T {
	switch {
	case *flagHunt:
		return long
	case rig.Runs(rig.Merge):
		return merge
	}
	return push
}

// inTurn reports whether a test that has so many variants makes this one: each push makes every third.
func inTurn(variant int) bool { return variant%hunting(3, 1, 1) == 0 }

// TestMain has what tests make be of use to other users.
func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	code := m.Run()
	_ = os.RemoveAll(installed.dir)
	os.Exit(code)
}

// programs are the agent, the launcher and the intruder, where every user may execute them.
type programs struct{ agent, nouserns, intruder string }

// installed are the programs of all tests, in a folder of their own.
var installed struct {
	programs
	dir  string
	err  error
	once sync.Once
}

// install builds the programs, once for all tests.
func install(t *testing.T) programs {
	t.Helper()
	agent := rig.Agent(t)
	installed.once.Do(func() { installed.err = installAll(agent) })
	rig.Must(t, installed.err)
	return installed.programs
}

func installAll(agent string) (err error) {
	if installed.dir, err = os.MkdirTemp("", "hostile"); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(installed.dir, name) }
	installed.programs = programs{in("agent"), in("nouserns"), in("intruder")}
	for _, name := range []string{"agent", "nouserns"} {
		program, err := os.ReadFile(filepath.Join(filepath.Dir(agent), name))
		if err := errors.Join(err, rig.WriteProgram(in(name), program)); err != nil {
			return err
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", installed.intruder, "./intruder")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the intruder: %w\n%s", err, out)
	}
	return errors.Join(os.Chmod(installed.dir, 0o755), os.Chmod(installed.intruder, 0o755)) // whatever the umask
}

// openDir is a folder that every user may enter. It goes with the test.
func openDir(t *testing.T) string {
	t.Helper()
	dir := rig.Value(os.MkdirTemp("", "hostile"))
	t.Cleanup(func() {
		// What an ordinary user has closed, that user cannot remove.
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() || err != nil {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
		rig.Check(t, os.RemoveAll(dir))
	})
	rig.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// somebody is the ordinary user of these tests. It is not nobody: a user namespace shows all that
// others own as that one's.
const somebody = 12000

// users are those that tests run as.
func users() []int {
	if uid := os.Getuid(); uid != 0 {
		return []int{uid}
	}
	return []int{0, somebody}
}

// as has a command run as a user without other groups.
func as(cmd *exec.Cmd, uid int) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: os.Getuid() != 0}}
	return rig.Leash(cmd)
}

// backend is a way in which a command is confined.
type backend struct {
	name    string
	through func(programs) []string // a program that executes the agent
}

var (
	namespaces = backend{"namespaces", func(programs) []string { return nil }}
	supervised = backend{"supervised", func(p programs) []string { return []string{p.nouserns, "--"} }}
)

// A ground is where the intruder is let loose: a folder with a workspace, "repo", and with what it
// must not touch.
type ground struct {
	base string
	uid  int
	mode mode
}

// mode says what a policy is like.
type mode string

const (
	// workspace lets the workspace be written and everything be read: level W.
	workspace mode = "workspace"
	// denying also denies some of it: level S.
	denying mode = "denying"
	// missing denies a name that does not exist: level S. Nor do the names exist that are protected
	// in each workspace.
	missing mode = "missing"
)

// policy returns what the client asks for.
func (g ground) policy() *protocol.Sandbox {
	repo := g.base + "/repo"
	special := func(access, kind string) protocol.SandboxEntry {
		return protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: kind}}}
	}
	path := func(access, name string) protocol.SandboxEntry {
		return protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(repo + name))}}
	}
	entries := []protocol.SandboxEntry{
		special("read", "root"), special("write", "project_roots"), path("read", "/a/b/locked"), path("write", "/a/b/locked/open"),
	}
	switch g.mode {
	case missing:
		entries = append(entries, path("deny", "/secret"))
	case denying:
		glob := protocol.SandboxPath{Type: "glob_pattern", Pattern: new(repo + "/*.env")}
		entries = append(entries, path("deny", "/vault"), protocol.SandboxEntry{Access: "deny", Path: glob})
	}
	cwd := protocol.NewPathURI(repo)
	return &protocol.Sandbox{
		Permissions: protocol.Permissions{
			Type:       protocol.PermissionsManaged,
			FileSystem: &protocol.FileSystemRules{Type: protocol.FileSystemRestricted, Entries: entries},
			Network:    protocol.NetworkRestricted,
		},
		WorkspaceRoots:      []protocol.PathURI{cwd},
		Cwd:                 &cwd,
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
}

// kept reports whether nothing may become of a path below the ground, besides what the command may
// do to its metadata.
func (g ground) kept(path string) bool {
	switch path {
	case "", "repo", "repo/a", "repo/a/b", "repo/a/b/locked", "repo/a/b/locked/x", "repo/a/b/locked/open":
		return true
	case "repo/a.env":
		return g.mode == denying
	}
	for ; path != "."; path = filepath.Dir(path) {
		if g.closed(path) {
			return true
		}
	}
	return false
}

// fill makes everything that is missing.
func (g ground) fill(t *testing.T) {
	t.Helper()
	rig.Must(t, g.make())
}

// The parts of a ground.
var (
	groundDirs = []string{
		"", "out", "out/dir", "repo", "repo/.git", "repo/.git/hooks", "repo/vault", "repo/dir", "repo/dir/sub", "repo/a", "repo/a/b",
		"repo/a/b/locked", "repo/a/b/locked/open",
	}
	groundFiles = []string{
		"out/file", "out/dir/x", "repo/.git/config", "repo/.git/hooks/x", "repo/vault/x", "repo/dir/x", "repo/dir/sub/deep",
		"repo/a/b/x", "repo/a/b/locked/x", "repo/a/b/locked/open/x", "repo/file", "repo/a.env", "repo/readonly",
	}
	groundLinks = map[string]string{
		"repo/link": "file", "repo/dirlink": "dir", "repo/outlink": "../out/file", "repo/outdir": "../out", "repo/loop": "loop",
		"repo/dangling": "nothing", "repo/gitlink": ".git", "repo/vaultlink": "vault", "repo/chain": "link", "out/back": "../repo",
	}
	groundModes = map[string]uint32{"repo/readonly": 0o444}
	// groundAttributes have an extended attribute, where the file system has any.
	groundAttributes = []string{"repo/file", "repo/dir", "repo/.git/HEAD", "out/file", "repo/vault/x"}
)

// make makes what is missing, and gives everything the metadata that it has at first.
func (g ground) make() error {
	var errs []error
	for _, name := range groundDirs {
		errs = append(errs, g.dir(name))
	}
	if g.mode != missing {
		for _, name := range []string{"repo", "repo/a/b/locked/open"} {
			errs = append(errs, g.dir(name+"/.codex"), g.file(name+"/.codex/x"), g.dir(name+"/.aws"), g.file(name+"/.aws/x"), g.file(name+"/.agents"))
		}
	}
	for _, name := range []string{"repo/.git", "repo/a/b/locked/open/.git"} {
		errs = append(errs, g.dir(name), g.file(name+"/HEAD"), g.dir(name+"/objects"), g.dir(name+"/refs"))
	}
	for _, name := range groundFiles {
		errs = append(errs, g.file(name))
	}
	links := map[string]string{"repo/abs": g.base + "/repo/file"}
	maps.Copy(links, groundLinks)
	for name, target := range links {
		errs = append(errs, g.settled(name, os.Symlink(target, g.base+"/"+name)))
	}
	for _, name := range groundAttributes {
		if g.closed(name) || g.closed(filepath.Dir(name)) {
			if _, err := unix.Lgetxattr(g.base+"/"+name, "user.one", nil); err == nil {
				continue
			}
		}
		if err := unix.Lsetxattr(g.base+"/"+name, "user.one", []byte(name), 0); err != nil && err != unix.ENOTSUP {
			errs = append(errs, err)
		}
	}
	errs = append(errs, g.settled("repo/fifo", syscall.Mkfifo(g.base+"/repo/fifo", 0o644)))
	return errors.Join(errs...)
}

// settled settles what was made, unless it was there already or there is an error.
func (g ground) settled(name string, err error) error {
	switch {
	case err == nil:
		return g.settle(name)
	case errors.Is(err, fs.ErrExist):
		return nil
	}
	return err
}

func (g ground) dir(name string) error {
	path := g.base + "/" + name
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if g.closed(name) {
		return g.own(path)
	}
	return errors.Join(os.Chmod(path, 0o755), g.own(path), unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, 0))
}

func (g ground) file(name string) error {
	path := g.base + "/" + name
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return g.settled(name, err)
	}
	text := "this is " + name + "\n"
	if strings.HasSuffix(name, ".git/HEAD") {
		text = "ref: refs/heads/main\n" // or git, and the agent, would not take the folder for a repository
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close(), g.settle(name))
}

// settle gives a new object its owner, mode and time.
func (g ground) settle(name string) error {
	path := g.base + "/" + name
	errs := []error{g.own(path)}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		errs = append(errs, syscall.Chmod(path, cmp.Or(groundModes[name], 0o644)))
	}
	return errors.Join(append(errs, setTime(path))...)
}

func (g ground) own(path string) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Lchown(path, g.uid, g.uid)
}
