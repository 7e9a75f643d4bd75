package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// nobody is the ordinary user of these tests.
const nobody = 65534

// escapeRig is a workspace with what is to be protected in it and around it, and an agent of the same user.
type escapeRig struct {
	uid              int
	base, repo, out  string
	secret, abstract string
	tcp, pts         string
	shm              int
	agent            *exec.Cmd
	client           *client.Client
	victim           *exec.Cmd
	said             *bytes.Buffer // by the victim; read it once it has ended
	reached          atomic.Int64  // connections and datagrams that came from inside
	sockets          sync.WaitGroup
	release          []func()
}

// newEscapeRig makes one for the user. What it starts ends with the test.
func newEscapeRig(t *testing.T, uid int) *escapeRig {
	t.Helper()
	base, err := os.MkdirTemp("", "escape")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	r := &escapeRig{
		uid: uid, base: base, repo: base + "/repo", out: base + "/out",
		secret: "secret-" + rand.Text(), abstract: "escape-" + rand.Text(),
	}
	r.fill(t)
	r.listen(t)
	r.startVictim(t)
	r.startAgent(t)
	return r
}

// fill makes the files.
func (r *escapeRig) fill(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"", "repo", "repo/.git", "repo/vault", "repo/dir", "repo/a", "repo/a/b", "repo/a/b/locked", "out"} {
		if err := os.MkdirAll(filepath.Join(r.base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{
		"repo/.git/HEAD", "repo/.git/config", "repo/vault/x", "repo/a.env", "repo/file", "repo/a/b/locked/x", "repo/dir/x", "out/file",
	} {
		if err := os.WriteFile(filepath.Join(r.base, file), []byte(r.secret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(r.out+"/file", r.repo+"/link"); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{agentBinary(t): "agent", escapeBinary(t): "escape"} {
		program, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.base+"/"+to, program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(r.base + "/escape")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(r.base, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, r.uid, r.uid))
	})
	if err := errors.Join(err, os.Chmod(r.base, 0o755), os.WriteFile(r.base+"/suid", program, 0o755), os.Chmod(r.base+"/suid", 0o4755)); err != nil {
		t.Fatal(err)
	}
}

// listen opens what nobody inside may reach. A stream sends a byte to whoever connects.
func (r *escapeRig) listen(t *testing.T) {
	t.Helper()
	for _, at := range []struct{ network, address string }{
		{"unix", r.out + "/stream"}, {"unix", "@" + r.abstract}, {"tcp", "127.0.0.1:0"},
	} {
		l, err := net.Listen(at.network, at.address)
		if err != nil {
			t.Fatal(err)
		}
		r.release = append(r.release, func() { _ = l.Close() })
		if at.network == "tcp" {
			r.tcp = l.Addr().String()
		}
		r.sockets.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if at.network != "tcp" {
					r.reached.Add(1)
				}
				_, _ = c.Write([]byte("x")) // to one that may be gone
				_ = c.Close()
			}
		})
	}
	for _, name := range []string{r.out + "/dgram", "@" + r.abstract + "-dgram"} {
		c, err := net.ListenPacket("unixgram", name)
		if err != nil {
			t.Fatal(err)
		}
		r.release = append(r.release, func() { _ = c.Close() })
		r.sockets.Go(func() {
			for {
				if _, _, err := c.ReadFrom(make([]byte, 64)); err != nil {
					return
				}
				r.reached.Add(1)
			}
		})
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	r.pts = tty.Name()
	r.release = append(r.release, func() { _, _ = ptmx.Close(), tty.Close() })
	r.shm = int(time.Now().UnixNano()&0xffffff) | 1<<28
	id, err := unix.SysvShmGet(r.shm, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Fatal(err)
	}
	r.release = append(r.release, func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	for _, path := range []string{r.out + "/stream", r.out + "/dgram", r.pts} {
		if err := errors.Join(os.Chmod(path, 0o666), os.Chown(path, r.uid, r.uid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, release := range r.release {
			release()
		}
		r.sockets.Wait()
	})
}

func (r *escapeRig) as() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(r.uid), Gid: uint32(r.uid)}}
}

// startVictim starts a process of the same user that says when it is signalled.
func (r *escapeRig) startVictim(t *testing.T) {
	t.Helper()
	r.victim = exec.Command("/bin/sh", "-c", "trap 'echo hit' WINCH; echo ready; while :; do read x || exit 0; done", r.secret)
	r.victim.SysProcAttr, r.victim.Dir = r.as(), "/"
	stdin, err := r.victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.said = new(bytes.Buffer)
	ready, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.victim.Stdout = stdout
	if err := r.victim.Start(); err != nil {
		t.Fatal(err)
	}
	_ = stdout.Close()
	lines := bufio.NewReader(ready)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var end sync.Once
	stop := func() {
		end.Do(func() {
			_ = stdin.Close()
			_, _ = r.said.ReadFrom(lines)
			if err := errors.Join(r.victim.Wait(), ready.Close()); err != nil {
				t.Errorf("the process outside: %v", err)
			}
		})
	}
	r.release = append(r.release, stop)
}

// startAgent starts the agent and connects to it.
func (r *escapeRig) startAgent(t *testing.T) {
	t.Helper()
	r.agent = exec.Command(r.base+"/agent", "--listen", "ws://127.0.0.1:0", "--log-level", "warn")
	r.agent.Env = []string{"PATH=/usr/bin:/bin", "E2E_SECRET=" + r.secret, "E2E_MARK=" + r.secret}
	r.agent.SysProcAttr, r.agent.Dir, r.agent.Stderr = r.as(), "/", t.Output()
	out, err := r.agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.agent.Process.Kill() // it has ended, unless the test failed
		_ = r.agent.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	r.client, err = client.Connect(t.Context(), client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
		return transport.Dial(ctx, strings.TrimSpace(url), transport.DialConfig{})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() }) // the agent may be gone
}

// policy is one of the three that the list is tried under.
func (r *escapeRig) policy(mode string) *protocol.Sandbox {
	entry := func(access, kind, path string) protocol.SandboxEntry {
		uri := protocol.NewPathURI(path)
		e := protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: kind}}
		switch kind {
		case "path":
			e.Path.Path = &uri
		case "glob_pattern":
			e.Path.Pattern = &path
		default:
			e.Path.Value = &protocol.SpecialPlace{Kind: path}
		}
		return e
	}
	rules := &protocol.FileSystemRules{Type: protocol.FileSystemRestricted, Entries: []protocol.SandboxEntry{
		entry("read", "special", "root"),
		entry("deny", "path", r.repo+"/vault"),
		entry("deny", "glob_pattern", r.repo+"/*.env"),
	}}
	if mode != "ro" {
		rules.Entries = append(rules.Entries,
			entry("write", "special", "project_roots"),
			entry("read", "path", r.repo+"/a/b/locked"),
			entry("deny", "path", r.repo+"/secret"),
		)
	}
	network := protocol.NetworkRestricted
	if mode == "net" {
		network = protocol.NetworkEnabled
	}
	cwd := protocol.NewPathURI(r.repo)
	return &protocol.Sandbox{
		Permissions:         protocol.Permissions{Type: protocol.PermissionsManaged, FileSystem: rules, Network: network},
		WorkspaceRoots:      []protocol.PathURI{cwd},
		Cwd:                 &cwd,
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
}

// start starts the program of attempts.
func (r *escapeRig) start(t *testing.T, mode string, args ...string) *client.Process {
	t.Helper()
	p, err := r.client.Start(t.Context(), protocol.StartParams{
		TTY:  mode == "tty",
		Argv: append([]string{r.base + "/escape"}, args...), Cwd: protocol.NewPathURI(r.repo),
		Env: map[string]string{
			"ESCAPE_REPO": r.repo, "ESCAPE_OUT": r.out, "ESCAPE_STREAM": r.out + "/stream", "ESCAPE_DGRAM": r.out + "/dgram",
			"ESCAPE_ABSTRACT": r.abstract, "ESCAPE_TCP": r.tcp, "ESCAPE_PTS": r.pts, "ESCAPE_SUID": r.base + "/suid",
			"ESCAPE_SECRET": r.secret, "ESCAPE_AGENT": strconv.Itoa(r.agent.Process.Pid),
			"ESCAPE_PID": strconv.Itoa(r.victim.Process.Pid), "ESCAPE_SHM": strconv.Itoa(r.shm),
		},
		Sandbox: r.policy(mode),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// protected says in one text what everything is like that nobody inside may change.
func (r *escapeRig) protected(t *testing.T, mode string) map[string]string {
	t.Helper()
	state := map[string]string{}
	writable := func(path string) bool {
		rel, err := filepath.Rel(r.repo, path)
		if mode == "ro" || err != nil || rel == "." || strings.HasPrefix(rel, "..") {
			return false
		}
		for _, kept := range []string{".git", ".agents", ".codex", ".aws", "vault", "a", "a/b", "a/b/locked", "a.env", "secret"} {
			if rel == kept || (kept == ".git" || kept == "vault" || kept == "a/b/locked") && strings.HasPrefix(rel, kept+"/") {
				return false
			}
		}
		return true
	}
	err := filepath.WalkDir(r.base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || writable(path) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprint(info.Mode(), st.Uid, st.Gid)
		if changes := mode != "ro" && (path == r.repo || path == r.repo+"/a" || path == r.repo+"/a/b"); !changes {
			line += fmt.Sprint(st.Nlink, info.Size(), info.ModTime())
		}
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err == nil {
			line += fmt.Sprintf(" %q", names[:n])
		}
		state[path] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"core_pattern", "printk", "hostname", "modprobe"} {
		value, err := os.ReadFile("/proc/sys/kernel/" + file)
		state[file] = fmt.Sprintf("%s %v", value, err) // not every kernel has them all
	}
	for _, pattern := range []string{"/tmp/escape-new", "/etc/escape-new", "/usr/escape-new", "/var/tmp/escape-new", "/dev/shm/escape-new"} {
		found, _ := filepath.Glob(pattern)
		state[pattern] = fmt.Sprint(found)
	}
	return state
}

// sameState reports what differs.
func sameState(t *testing.T, before, after map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if after[key] != before[key] {
			t.Errorf("%s was\n%s\nand is\n%s", key, before[key], after[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[key]; !ok {
			t.Errorf("%s has appeared: %s", key, after[key])
		}
	}
}

// escapeBinary returns the program of attempts, built once for all tests.
func escapeBinary(t *testing.T) string {
	t.Helper()
	path, err := buildEscape()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildEscape = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../bin/escape")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./escape")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building escape: %w\n%s", err, out)
	}
	return path, nil
})
