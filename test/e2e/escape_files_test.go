package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestEscapeFiles makes the file requests of sandbox.md 17, and more, over the wire. Each row
// names the code and the text that the request must be refused with.
func TestEscapeFiles(t *testing.T) {
	tryFiles(t, machineSites())
}

// TestEscapeFilesContainer is the same in containers of every kind, without any exception.
func TestEscapeFilesContainer(t *testing.T) {
	tryFiles(t, containerSites(t, triedKinds(t)))
}

func tryFiles(t *testing.T, sites []escapeSite) {
	const (
		readOnly = "-32603 Read-only file system (os error 30)"
		denied   = "-32600 Permission denied (os error 13)"
		busy     = "-32603 Resource busy (os error 16)"
		gone     = "-32004 No such file or directory (os error 2)"
	)
	for i, site := range sites {
		for j, mode := range []string{"ro", "ww"} {
			if !inTurn(i+j, len(sites)) {
				continue
			}
			t.Run(site.name+"/"+mode, func(t *testing.T) {
				r := newEscapeRig(t, site)
				agent, outside := fmt.Sprint("/proc/", r.agentPID()), fmt.Sprint("/proc/", r.outside.pid)
				ctx, fs := rig.Context(t), r.client.FS(r.policy(mode))
				removed := readOnly
				if mode == "ww" {
					removed = busy
				}
				rig.Must(t, os.Symlink(r.repo+"/vault", r.repo+"/to-vault"), os.Symlink(r.repo+"/.git", r.repo+"/to-git"))
				rig.Must(t, syscall.Mkfifo(r.repo+"/fifo", 0o666))
				before := r.protected(t, mode)
				data := []byte("escaped")
				for _, tt := range []struct {
					name, want string
					try        func() error
				}{
					{"63 write through a link", readOnly, func() error { return fs.WriteFile(ctx, r.repo+"/link", data) }},
					{"64a read a device", "is not a regular file", func() error { return rig.Err(fs.ReadFile(ctx, "/dev/zero")) }},
					{"64b read a pipe with a name", "is not a regular file", func() error { return rig.Err(fs.ReadFile(ctx, r.repo+"/fifo")) }},
					{"65 copy into .git", readOnly, func() error { return fs.Copy(ctx, r.repo+"/dir", r.repo+"/.git/dir") }},
					{"66 remove the workspace", removed, func() error { return fs.RemoveAll(ctx, r.repo) }},
					{"67 make a protected directory", readOnly, func() error { return fs.Mkdir(ctx, r.repo+"/.agents/skills", true) }},
					{"70 write a sysctl", readOnly, func() error { return fs.WriteFile(ctx, "/proc/sys/kernel/printk", data) }},
					{"71a own environment", denied, func() error { return rig.Err(fs.ReadFile(ctx, "/proc/self/environ")) }},
					{"71b the agent's environment", denied, func() error { return rig.Err(fs.ReadFile(ctx, agent+"/environ")) }},
					{"x1a the agent's memory", denied, func() error { return rig.Err(fs.ReadFile(ctx, agent+"/mem")) }},
					{"x1b the agent's descriptors", denied, func() error { return rig.Err(fs.ReadDir(ctx, agent+"/fd")) }},
					{"x1c the agent's root", denied, func() error { return rig.Err(fs.ReadFile(ctx, agent+"/root"+r.repo+"/vault/x")) }},
					{"x1d the agent's directory", denied, func() error { return rig.Err(fs.ReadFile(ctx, agent+"/cwd"+r.repo+"/vault/x")) }},
					{"x1e a task of the agent", denied, func() error { return rig.Err(fs.ReadFile(ctx, fmt.Sprint(agent, "/task/", r.agentPID(), "/environ"))) }},
					{"x1f root of self", denied, func() error { return rig.Err(fs.ReadFile(ctx, "/proc/self/root"+r.repo+"/vault/x")) }},
					{"x1g root of the thread", denied, func() error { return rig.Err(fs.ReadFile(ctx, "/proc/thread-self/root"+r.repo+"/vault/x")) }},
					{"x1h root of another process", denied, func() error { return rig.Err(fs.ReadFile(ctx, outside+"/root"+r.repo+"/vault/x")) }},
					{"x1i environment of another process", denied, func() error { return rig.Err(fs.ReadFile(ctx, outside+"/environ")) }},
					{"x1j standard input by /dev", denied, func() error { return rig.Err(fs.ReadFile(ctx, "/dev/stdin")) }},
					{"x1k descriptors by /dev", denied, func() error { return rig.Err(fs.ReadDir(ctx, "/dev/fd/")) }},
					{"x2a a denied file", denied, func() error { return rig.Err(fs.ReadFile(ctx, r.repo+"/vault/x")) }},
					{"x2b a denied file by dots", denied, func() error { return rig.Err(fs.ReadFile(ctx, r.repo+"/dir/../vault/./x")) }},
					{"x2c a denied file by a link", denied, func() error { return rig.Err(fs.ReadFile(ctx, r.repo+"/to-vault/x")) }},
					{"x2d a file that a glob denies", denied, func() error { return rig.Err(fs.ReadFile(ctx, r.repo+"/a.env")) }},
					{"x2e list a denied directory by a link", denied, func() error { return rig.Err(fs.ReadDir(ctx, r.repo+"/to-vault")) }},
					{"x2f copy a denied file", denied, func() error { return fs.Copy(ctx, r.repo+"/a.env", r.repo+"/copy") }},
					{"x2g open a denied file", denied, func() error { return rig.Err(fs.Open(ctx, r.repo+"/a.env", "read")) }},
					{"x2h write a denied file", denied, func() error { return fs.WriteFile(ctx, r.repo+"/a.env", data) }},
					{"x3a write to .git by a link", readOnly, func() error { return fs.WriteFile(ctx, r.repo+"/to-git/config", data) }},
					{"x3b remove from .git", readOnly, func() error { return fs.Remove(ctx, r.repo+"/.git/HEAD") }},
					{"x3c remove .git", removed, func() error { return fs.RemoveAll(ctx, r.repo+"/.git") }},
					{"x3d rename .git", removed, func() error { return fs.Rename(ctx, r.repo+"/.git", r.repo+"/moved", true) }},
					{"x3e rename an ancestor of a carve-out", removed, func() error { return fs.Rename(ctx, r.repo+"/a", r.repo+"/moved", true) }},
					{"x3f remove an ancestor of a carve-out", removed, func() error { return fs.RemoveAll(ctx, r.repo+"/a") }},
					{"x3g rename over .git/HEAD", readOnly, func() error { return fs.Rename(ctx, r.repo+"/file", r.repo+"/.git/HEAD", true) }},
					{"x3h rename a file outside", readOnly, func() error { return fs.Rename(ctx, r.out+"/file", r.repo+"/taken", true) }},
					{"x3i make .codex", readOnly, func() error { return fs.Mkdir(ctx, r.repo+"/.codex", false) }},
					{"x3j write to .aws", readOnly, func() error { return fs.WriteFile(ctx, r.repo+"/.aws", data) }},
					{"x4a write outside", readOnly, func() error { return fs.WriteFile(ctx, r.out+"/new", data) }},
					{"x4b write over a program", readOnly, func() error { return fs.WriteFile(ctx, r.base+"/agent", data) }},
					{"x4c copy a tree outside", readOnly, func() error { return fs.Copy(ctx, r.repo+"/dir", r.out+"/dir") }},
					{"x4d write to /proc/self", readOnly + "|" + denied, func() error { return fs.WriteFile(ctx, "/proc/self/comm", data) }},
					{"x4e write to a control group", readOnly + "|" + gone, func() error {
						return fs.WriteFile(ctx, "/sys/fs/cgroup/unified/cgroup.procs", []byte("0"))
					}},
				} {
					if err := tt.try(); !refusedWith(err, tt.want) {
						t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
					}
				}
				result, err := fs.Walk(ctx, r.repo, protocol.WalkOptions{
					MaxDepth: 16, MaxDirectories: 1000, MaxEntries: 1000, FollowDirectorySymlinks: true,
				})
				rig.Must(t, err)
				for _, entry := range result.Entries { // 68: a walk that follows links lists nothing that is denied
					if strings.HasPrefix(entry.Path, r.repo+"/vault/") || strings.HasPrefix(entry.Path, r.repo+"/to-vault/") {
						t.Errorf("the walk lists %s", entry.Path)
					}
				}
				has(t, fmt.Sprint(result.Errors), "Permission denied (os error 13)")
				rig.Same(t, "what is protected", before, r.protected(t, mode))
			})
		}
	}
}

// refusedWith reports whether err has the code and the text, or one of them.
func refusedWith(err error, want string) bool {
	refusal, ok := errors.AsType[*client.ServerError](err)
	if !ok {
		return false
	}
	text := fmt.Sprintf("%d %s", refusal.Err.Code, refusal.Err.Message)
	for one := range strings.SplitSeq(want, "|") {
		if strings.Contains(text, one) {
			return true
		}
	}
	return false
}

// TestEscapeSwap makes attempts 63 and 69 against the clock. A link that leads into the workspace
// and out of it by turns never lets a write out, and two policies for the same path never get
// each other's rights.
func TestEscapeSwap(t *testing.T) {
	r := newEscapeRig(t, machineSites()[0])
	before := r.protected(t, "ww")
	inside := r.repo + "/dir"
	turn := r.repo + "/turn"
	stop := make(chan struct{})
	var turning sync.WaitGroup
	turning.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := inside
			if i%2 == 1 {
				target = r.out
			}
			_ = os.Symlink(target, turn+"-next")
			_ = os.Rename(turn+"-next", turn)
		}
	})
	writer, reader := r.client.FS(r.policy("ww")), r.client.FS(r.policy("ro"))
	var requests sync.WaitGroup
	length := time.Second
	if rig.Runs(rig.Merge) {
		length = 3 * time.Second
	}
	end := time.Now().Add(length)
	for n := range 4 {
		requests.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				name := fmt.Sprintf("%s/swapped-%d", turn, n)
				if err := writer.WriteFile(rig.Context(t), name, []byte("x")); err != nil && !refusedWith(err, "(os error 30)|(os error 2)") {
					t.Errorf("writing: %v", err)
				}
				if err := reader.WriteFile(rig.Context(t), filepath.Join(inside, fmt.Sprint("mixed-", n)), []byte("x")); !refusedWith(err, "(os error 30)") {
					t.Errorf("writing under the read-only policy: %v", err)
				}
				data, err := reader.ReadFile(rig.Context(t), r.repo+"/vault/x")
				if !refusedWith(err, "(os error 13)") || bytes.Contains(data, []byte(r.secret)) {
					t.Errorf("reading what is denied: %v", err)
				}
			}
		})
	}
	requests.Wait()
	close(stop)
	turning.Wait()
	rig.Same(t, "what is protected", before, r.protected(t, "ww"))
}
