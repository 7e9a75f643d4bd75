package e2e

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// policy returns the policy of a mode that the attempts are made under. Plain, view and ro allow
// no writing; plain and work deny no path, and view shows fewer paths instead.
func (r *escapeRig) policy(mode string) *protocol.Sandbox {
	entries := []string{"read :root", "deny " + r.repo + "/vault", "deny " + r.repo + "/*.env"}
	switch mode {
	case "view":
		entries = []string{"read :minimal"}
		for _, shown := range []string{"escape", "repo/.git", "repo/dir", "repo/a", "repo/file"} {
			entries = append(entries, "read "+filepath.Join(r.base, shown))
		}
	case "plain", "work":
		entries = entries[:1]
	}
	if writes(mode) {
		entries = append(entries, "write :project_roots", "read "+r.repo+"/a/b/locked")
		if mode != "work" {
			entries = append(entries, "deny "+r.repo+"/secret")
		}
	}
	if r.site.names(mode) {
		entries = append(entries, "unix_socket "+r.out+"/named", "device /dev/loop0")
	}
	if mode == "net" {
		return sandboxOf(r.repo, protocol.NetworkEnabled, entries...)
	}
	return sandboxOf(r.repo, protocol.NetworkRestricted, entries...)
}

// names reports whether the policy of a mode names a socket and a device, which not every host can enforce.
func (s escapeSite) names(mode string) bool {
	return mode == "ww" && s.kind.means != oldSupervisor && s.kind.means != sharedUnguarded
}

// sandboxOf is a policy of entries such as "read :root", "write /a/folder" and "deny /a/*.glob", in a
// workspace if there is one.
func sandboxOf(workspace, network string, entries ...string) *protocol.Sandbox {
	rules := &protocol.FileSystemRules{Type: protocol.FileSystemRestricted}
	for _, text := range entries {
		access, path, _ := strings.Cut(text, " ")
		e := protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(path))}}
		if access == "unix_socket" || access == "device" {
			e.Access, e.Path.Type = "write", access
		} else if kind, special := strings.CutPrefix(path, ":"); special {
			e.Path = protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: kind}}
		} else if strings.Contains(path, "*") {
			e.Path = protocol.SandboxPath{Type: "glob_pattern", Pattern: &path}
		}
		rules.Entries = append(rules.Entries, e)
	}
	box := &protocol.Sandbox{
		Permissions:         protocol.Permissions{Type: protocol.PermissionsManaged, FileSystem: rules, Network: network},
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}
	if workspace != "" {
		cwd := protocol.NewPathURI(workspace)
		box.WorkspaceRoots, box.Cwd = []protocol.PathURI{cwd}, &cwd
	}
	return box
}

// readOnly is a sandbox in which everything can be read, and some folders written.
func readOnly(writable ...string) *protocol.Sandbox {
	entries := []string{"read :root"}
	for _, dir := range writable {
		entries = append(entries, "write "+dir)
	}
	return sandboxOf("", protocol.NetworkRestricted, entries...)
}

// writes reports whether the workspace is writable in a mode.
func writes(mode string) bool { return slices.Contains([]string{"ww", "net", "tty", "work"}, mode) }

// protected returns one text about everything that nobody inside may change, to be compared with
// a later one.
func (r *escapeRig) protected(t *testing.T, mode string) map[string]string {
	t.Helper()
	state := map[string]string{}
	writable := func(path string) bool {
		rel, err := filepath.Rel(r.repo, path)
		if !writes(mode) || err != nil || rel == "." || strings.HasPrefix(rel, "..") {
			return false
		}
		keeps := []string{".git", ".agents", ".codex", ".aws", "a", "a/b", "a/b/locked"}
		if mode != "work" {
			keeps = append(keeps, "vault", "a.env", "secret")
		}
		for _, kept := range keeps {
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
		if changes := writes(mode) && (path == r.repo || path == r.repo+"/a" || path == r.repo+"/a/b"); !changes {
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
	rig.Must(t, err)
	// What only a process in the container can see, the agent is asked for.
	unconfined := r.client.FS(nil)
	for _, file := range []string{"core_pattern", "printk", "hostname", "modprobe"} {
		value, err := unconfined.ReadFile(rig.Context(t), "/proc/sys/kernel/"+file)
		state[file] = fmt.Sprintf("%s %v", value, err) // not every kernel has them all
	}
	for _, dir := range []string{"/tmp", "/etc", "/usr", "/var/tmp", "/dev/shm"} {
		info, err := unconfined.Stat(rig.Context(t), dir+"/escape-new")
		state[dir] = fmt.Sprint(info, err)
	}
	return state
}
