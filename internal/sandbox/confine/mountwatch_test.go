package confine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestReplacedOutside: when somebody outside detaches or moves a mount of a
// view, by removing, replacing or renaming what it is on, the command is ended
// before it can use that.
func TestReplacedOutside(t *testing.T) {
	t.Parallel()
	const again = "new"
	for i, tt := range []struct {
		name    string
		replace func(root string) error
		path    string // what the command is told about
		made    bool   // so that there is something new at a protected name
	}{
		{"a file is replaced", func(root string) error {
			return os.Rename(filepath.Join(root, ".env.new"), filepath.Join(root, ".env"))
		}, ".env", false},
		{"a directory is removed", func(root string) error {
			return errors.Join(os.RemoveAll(root+"/vault"), os.Mkdir(root+"/vault", 0o755),
				os.WriteFile(root+"/vault/secret", []byte(again), 0o600))
		}, "vault", false},
		{"a repository is removed", func(root string) error { return os.RemoveAll(root + "/.git") }, ".git", false},
		{"a placeholder is replaced", func(root string) error {
			return errors.Join(os.Mkdir(root+"/new", 0o755), exchange(root+"/new", root+"/.agents"))
		}, ".agents", true},
		{"a file is moved away", func(root string) error {
			return errors.Join(os.Rename(root+"/.env", root+"/.env.old"), os.Rename(root+"/.env.new", root+"/.env"))
		}, ".env", false},
		{"a repository is moved away", func(root string) error {
			return errors.Join(os.MkdirAll(root+"/new/hooks", 0o755), exchange(root+"/new", root+"/.git"))
		}, ".git", true},
		{"a directory above is moved away", func(root string) error {
			return errors.Join(os.Rename(root+"/a", root+"/b"), os.MkdirAll(root+"/a/deep", 0o755),
				os.WriteFile(root+"/a/deep/secret", []byte(again), 0o600))
		}, "a/deep", false},
	} {
		for j, row := range viewRows() {
			if !tried(j, i) {
				continue
			}
			root := t.TempDir()
			for _, name := range []string{".env", "vault/secret", ".git/hooks/old", "a/deep/secret"} {
				put(t, filepath.Join(root, name), "old")
			}
			put(t, filepath.Join(root, ".env.new"), again)
			c := row.command(t, root, "sh", "-c", `(setsid sleep 1000 &); echo up; read -r _
				cat .env vault/secret a/deep/secret; echo x > .git/hooks/new; echo x > .agents/new; echo end`)
			c.policy = denying(t, root, row.network, root+"/.env", root+"/vault", root+"/a/deep")
			c.Stdin = true
			r := c.start(t)
			r.until("up\n")
			rig.Must(t, tt.replace(root))
			// The command reads the files once it gets a line. It gets none
			// here, and has to be ended without. In the end it gets one
			// all the same, and what it writes then fails the test.
			select {
			case <-r.Done():
			case <-time.After(sandboxtest.Enough):
				_, _ = r.Write(t.Context(), "1", []byte("\n"))
			}
			lost := filepath.Join(root, tt.path)
			want := "up\nsandbox: " + lost + " was replaced by somebody outside; the command was ended"
			if tt.made {
				want += ". Since the command began, " + lost + " was created, perhaps by the command: check it before you use it"
			}
			wantEnd(t, row.name+": "+tt.name, r, want+"\n", setupFailed)
		}
	}
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// TestReplacedInSharedMemory: what a policy grants below /dev/shm is the
// host's, so the mounts there are watched too.
func TestReplacedInSharedMemory(t *testing.T) {
	t.Parallel()
	for _, row := range someOf(viewRows()) {
		root, err := os.MkdirTemp("/dev/shm", "replaced")
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { os.RemoveAll(root) })
		for _, tt := range []struct {
			path    string
			replace func() error
		}{
			{"one.env", func() error { return os.Rename(root+"/new", root+"/one.env") }},
			{"vault", func() error {
				return errors.Join(os.Rename(root+"/vault", root+"/old"), os.Mkdir(root+"/vault", 0o755))
			}},
		} {
			for _, name := range []string{"one.env", "vault/secret", "new"} {
				put(t, filepath.Join(root, name), "old")
			}
			c := row.command(t, root, "sh", "-c", "echo up; exec sleep 1000")
			c.policy = policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{
				{Place: sandbox.PlaceRoot, Access: sandbox.Read},
				{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
				{Place: sandbox.PlacePath, Path: root + "/vault", Access: sandbox.Denied},
				{Place: sandbox.PlaceGlob, Path: root + "/**/*.env", Access: sandbox.Denied},
			}, Network: row.network})
			r := c.start(t)
			r.until("up\n")
			rig.Must(t, tt.replace())
			out, code := r.end()
			ended := code == setupFailed && strings.Contains(out, root+"/"+tt.path+" was replaced")
			rig.Is(t, ended, true, "%s: %s: %q, code %d", row.name, tt.path, out, code)
			rig.Must(t, os.RemoveAll(root+"/old"))
		}
	}
}

// TestReplacedWhileRedirected: a shell that has redirected its stderr for one program is told all the same.
func TestReplacedWhileRedirected(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root+"/.env", "old")
	row := rows()[0]
	c := row.command(t, root, "sh", "-c", "{ echo up; sleep 1000; } 2>/dev/null; echo end")
	c.policy = denying(t, root, row.network, root+"/.env")
	r := c.start(t)
	r.until("up\n")
	rig.Must(t, os.Remove(root+"/.env"))
	wantEnd(t, row.name, r, "up\nsandbox: "+root+"/.env was replaced by somebody outside; the command was ended\n", setupFailed)
}

// TestReplacedUntold: init writes the reason only to the stderr that the
// command was given. If the command has another one by then nothing is written.
func TestReplacedUntold(t *testing.T) {
	t.Parallel()
	for _, row := range viewRows() {
		if row.limits != (Limits{}) { // the command may be up while init still has its own stderr
			continue
		}
		root := t.TempDir()
		put(t, root+"/.env", "old")
		c := row.command(t, root, "sh", "-c", "exec 2>err; echo up; exec sleep 1000")
		c.policy = denying(t, root, row.network, root+"/.env")
		r := c.start(t)
		r.until("up\n")
		rig.Must(t, os.Remove(root+"/.env"))
		wantEnd(t, row.name, r, "up\n", setupFailed)
		rig.Is(t, read(t, root+"/err"), "", "%s: written", row.name)
	}
}

// TestHarmlessChanges: changes outside that leave the mounts of the view where
// they are do not end the command.
func TestHarmlessChanges(t *testing.T) {
	t.Parallel()
	for _, row := range someOf(viewRows()) {
		root, outside := t.TempDir(), t.TempDir()
		for _, name := range []string{".env", "vault/secret", "dir/file"} {
			put(t, filepath.Join(root, name), "old")
		}
		socket := rig.Value(net.Listen("unix", outside+"/socket")) // the view covers it with a mount
		c := row.command(t, root, "sh", "-c", "echo up; read -r _; cat .env; exit 7")
		c.policy = denying(t, root, row.network, root+"/.env", root+"/vault")
		c.Stdin = true
		r := c.start(t)
		r.until("up\n")
		rig.Must(t, socket.Close(), os.WriteFile(root+"/.env", []byte("new"), 0o600), os.Remove(root+"/vault/secret"),
			os.Rename(root+"/dir", root+"/vault/dir"), os.RemoveAll(root+"/vault/dir"), os.RemoveAll(outside))
		rig.Check(t, rig.Err(r.Write(t.Context(), "1", []byte("\n"))))
		out, code := r.end()
		rig.Is(t, code == 7 && strings.HasSuffix(out, "Permission denied\n"), true, "%s: %q, code %d", row.name, out, code)
	}
}

// TestWatchRenames: both ways of watching notice the same renames.
func TestWatchRenames(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"directories", "objects"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{os.Args[0], renamesChild, t.TempDir(), way}
		rig.Is(t, string(rig.Value(cmd.CombinedOutput())), "", "%s", way)
	}
}

const renamesChild = "renames-child"

// renamesChildMain renames what it watches. It is a process of its own because
// watchDirectories watches until its process ends.
func renamesChildMain() int {
	root := os.Args[2]
	watch, paths := watchObjects, map[string]bool{root + "/a": true, root + "/a/b": true, root + "/a/b/file": true, root + "/none/file": true}
	if os.Args[3] == "directories" {
		watch, paths = watchDirectories, map[string]bool{root: true, root + "/a": true, root + "/a/b": true, root + "/none": true}
	}
	err := errors.Join(os.MkdirAll(root+"/a/b", 0o755), os.WriteFile(root+"/a/b/file", nil, 0o600))
	fd, watchErr := watch(paths)
	if err := errors.Join(err, watchErr); err != nil {
		fmt.Println(err)
	}
	for _, rename := range [][2]string{{"/a/b/file", "/a/b/other"}, {"/a/b", "/b"}, {"/a", "/c"}} {
		if err := os.Rename(root+rename[0], root+rename[1]); err != nil {
			fmt.Println(err)
		}
		// The signal that reports the rename may interrupt poll.
		for n, err := 0, error(unix.EINTR); err == unix.EINTR; {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
			if n != 1 && err != unix.EINTR {
				fmt.Printf("%v: %d events, %v\n", rename, n, err)
			}
		}
		_, _ = unix.Read(fd, make([]byte, 4<<10))
	}
	return 0
}
