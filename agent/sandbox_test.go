package agent

import (
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/protocol"
	testrig "github.com/execagent/execagent/test/rig"
)

// box is the fixture of sandbox.md 17: a workspace with a repository, a vault
// and links, and things beside it.
type box struct{ root, repo, out string }

func newBox(t *testing.T) box {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	testrig.Check(t, err)
	b := box{root, root + "/repo", root + "/out"}
	for path, text := range map[string]string{
		"repo/a.env": "secret", "repo/a.txt": "a", "repo/.git/HEAD": "ref", "repo/.git/config": "c",
		"repo/vault/x": "hidden", "repo/d/e/b.txt": "b", "repo/d/f": "f", "out/f": "out",
	} {
		file := filepath.Join(root, path)
		testrig.Check(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
	}
	err = errors.Join(os.Symlink(b.out, b.repo+"/link"), os.Symlink(b.repo+"/a.txt", b.repo+"/inner"),
		os.Symlink(b.repo+"/vault", b.repo+"/tovault"), syscall.Mkfifo(b.repo+"/fifo", 0o644))
	testrig.Check(t, err)
	return b
}

func special(kind, access string) object {
	return object{"path": object{"type": "special", "value": object{"kind": kind}}, "access": access}
}

func at(path, access string) object {
	return object{"path": object{"type": "path", "path": uri(path)}, "access": access}
}

func glob(pattern string) object {
	return object{"path": object{"type": "glob_pattern", "pattern": pattern}, "access": "deny"}
}

func managed(network string, entries ...object) object {
	return object{
		"permissions": object{
			"type": "managed", "network": network,
			"file_system": object{"type": "restricted", "entries": entries},
		},
		"windowsSandboxLevel": "disabled",
	}
}

func (b box) readOnly() object { return managed("restricted", special("root", "read")) }

func (b box) workspaceWrite() object {
	return managed("restricted", special("root", "read"), at(b.repo, "write"), at(b.repo+"/vault", "deny"))
}

// nested returns a policy whose rules are for directories within each other: the
// nearest rule counts (sandbox.md 5, item 6).
func (b box) nested() object {
	return managed("restricted", special("root", "read"), at(b.repo, "write"), at(b.repo+"/d", "none"), at(b.repo+"/d/e", "write"))
}

func (b box) view() object {
	return managed("restricted", special("minimal", "read"), at(b.repo, "read"))
}

func (b box) globs() object {
	return managed("restricted", special("root", "read"), glob(b.repo+"/**/*.env"))
}

// TestConfinedFiles goes through the rows of sandbox.md 9.
func TestConfinedFiles(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newRig(t, Config{}).attach("")
	const (
		readOnlyFS = "-32603 Read-only file system (os error 30)"
		denied     = "-32600 Permission denied (os error 13)"
		missing    = "-32004 No such file or directory (os error 2)"
		busy       = "-32603 Resource busy (os error 16)"
		notFile    = "-32600 path"
		ok         = ""
	)
	read := func(path string) object { return object{"path": uri(path)} }
	write := func(path string) object { return object{"path": uri(path), "dataBase64": "eA=="} }
	mkdir := func(path string) object { return object{"path": uri(path), "recursive": true} }
	remove := func(path string) object { return object{"path": uri(path), "recursive": true, "force": false} }
	copies := func(src, dst string) object {
		return object{"sourcePath": uri(src), "destinationPath": uri(dst), "recursive": true}
	}
	ro, ww, nested, view, globs := b.readOnly(), b.workspaceWrite(), b.nested(), b.view(), b.globs()
	for _, tt := range []struct {
		name, method string
		params       object
		sandbox      object
		want         string
	}{
		{"ro read", "readFile", read(b.repo + "/a.txt"), ro, ok},
		{"ro write", "writeFile", write(b.repo + "/n"), ro, readOnlyFS},
		{"ro create", "createDirectory", mkdir(b.repo + "/n"), ro, readOnlyFS},
		{"ro remove", "remove", remove(b.repo + "/a.txt"), ro, readOnlyFS},
		{"ro remove root", "remove", remove(b.repo), ro, readOnlyFS},
		{"ro copy", "copy", copies(b.repo+"/a.txt", b.repo+"/n"), ro, readOnlyFS},
		{"ro sysctl", "writeFile", write("/proc/sys/kernel/printk"), ro, readOnlyFS},
		{"ro comm", "writeFile", write("/proc/self/comm"), ro, readOnlyFS},
		{"ro own environment", "readFile", read("/proc/self/environ"), ro, denied},
		{"ro pid's environment", "readFile", read("/proc/1/environ"), ro, denied},
		{"ro meminfo", "readFile", read("/proc/meminfo"), ro, ok},
		{"ro directory", "readFile", read(b.repo + "/d"), ro, notFile},
		{"ro fifo", "readFile", read(b.repo + "/fifo"), ro, notFile},
		{"ww write", "writeFile", write(b.repo + "/new"), ww, ok},
		{"ww overwrite", "writeFile", write(b.repo + "/new"), ww, ok},
		{"ww write outside", "writeFile", write(b.out + "/x"), ww, readOnlyFS},
		{"ww write .git", "writeFile", write(b.repo + "/.git/config"), ww, readOnlyFS},
		{"ww write through link", "writeFile", write(b.repo + "/link/f"), ww, readOnlyFS},
		{"ww write through inner link", "writeFile", write(b.repo + "/inner"), ww, ok},
		{"ww mkdir .agents", "createDirectory", object{"path": uri(b.repo + "/.agents"), "recursive": false}, ww, readOnlyFS},
		{"ww mkdir .agents/x", "createDirectory", mkdir(b.repo + "/.agents/x"), ww, readOnlyFS},
		{"ww nested .git", "createDirectory", mkdir(b.repo + "/d/.git"), ww, ok},
		{"ww stat missing protected", "getMetadata", read(b.repo + "/.agents"), ww, missing},
		{"ww remove root", "remove", remove(b.repo), ww, busy},
		{"ww remove .git", "remove", remove(b.repo + "/.git"), ww, busy},
		{"ww copy into .git", "copy", copies(b.repo+"/d", b.repo+"/.git"), ww, readOnlyFS},
		{"ww read vault", "readFile", read(b.repo + "/vault/x"), ww, denied},
		{"ww stat vault's child", "getMetadata", read(b.repo + "/vault/x"), ww, denied},
		{"ww canonicalize vault's child", "canonicalize", read(b.repo + "/vault/x"), ww, denied},
		{"ww write vault", "writeFile", write(b.repo + "/vault/n"), ww, denied},
		{"ww remove in vault", "remove", remove(b.repo + "/vault/x"), ww, denied},
		{"ww list vault", "readDirectory", read(b.repo + "/vault"), ww, denied},
		{"ww vault by link", "readFile", read(b.repo + "/tovault/x"), ww, denied},
		{"ww copy vault", "copy", copies(b.repo+"/vault", b.repo+"/v2"), ww, denied},
		{"ww stat vault", "getMetadata", read(b.repo + "/vault"), ww, ok},
		{"ww fifo", "readFile", read(b.repo + "/fifo"), ww, notFile},
		{"ww host device", "readFile", read("/dev/kmsg"), ww, missing},
		{"nested denied list", "readDirectory", read(b.repo + "/d"), nested, denied},
		{"nested denied read", "readFile", read(b.repo + "/d/f"), nested, denied},
		{"nested reopened read", "readFile", read(b.repo + "/d/e/b.txt"), nested, ok},
		{"nested reopened write", "writeFile", write(b.repo + "/d/e/n"), nested, ok},
		{"view read", "readFile", read(b.repo + "/a.txt"), view, ok},
		{"view outside", "readFile", read(b.out + "/f"), view, missing},
		{"view write", "writeFile", write(b.repo + "/n"), view, readOnlyFS},
		{"glob", "readFile", read(b.repo + "/a.env"), globs, denied},
		{"glob beside", "readFile", read(b.repo + "/a.txt"), globs, ok},
	} {
		params := object{"sandbox": tt.sandbox}
		maps.Copy(params, tt.params)
		err := c.call("fs/"+tt.method, params, nil)
		got := ""
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			got = strings.TrimSpace(strconv.Itoa(int(e.Code)) + " " + e.Message)
		} else if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if got != tt.want && (tt.want == ok || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for path, want := range map[string]string{"repo/vault/x": "hidden", "repo/.git/config": "c", "out/f": "out"} {
		if got, err := os.ReadFile(filepath.Join(b.root, path)); string(got) != want {
			t.Errorf("%s is %q now (%v)", path, got, err)
		}
	}

	// A path of another system is refused only where it is used.
	for kind, want := range map[string]protocol.Code{"root": 0, "project_roots": protocol.CodeInvalidRequest} {
		foreign := managed("restricted", special("root", "read"), special(kind, "read"))
		foreign["cwd"] = "file://host/x"
		err := c.call("fs/readFile", object{"path": uri(b.repo + "/a.txt"), "sandbox": foreign}, nil)
		e, _ := errors.AsType[*protocol.Error](err)
		if e == nil && want != 0 || e != nil && e.Code != want {
			t.Errorf("a foreign cwd and %s: %v, want code %d", kind, err, want)
		}
	}

	var m protocol.FileMetadata
	c.must("fs/getMetadata", object{"path": uri(b.repo + "/vault"), "sandbox": ww}, &m)
	if !m.IsDirectory || m.Size != 0 || m.ModifiedAtMs != 0 || m.CreatedAtMs != 0 {
		t.Errorf("metadata of a denied directory: %+v", m)
	}
}

// TestConfinedHandles opens files under a policy and goes on through handles.
func TestConfinedHandles(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newRig(t, Config{}).attach("")
	c.must("fs/open", object{"handleId": "r", "path": uri(b.repo + "/a.txt"), "mode": "read", "sandbox": b.view()}, nil)
	var block struct {
		Chunk []byte `json:"chunk"`
	}
	c.must("fs/readBlock", object{"handleId": "r", "offset": 0, "len": 10}, &block)
	if string(block.Chunk) != "a" {
		t.Errorf("read %q", block.Chunk)
	}
	c.must("fs/open", object{"handleId": "w", "path": uri(b.repo + "/w"), "mode": "replace", "sandbox": b.workspaceWrite()}, nil)
	c.must("fs/writeBlock", object{"handleId": "w", "offset": 0, "chunk": base64.StdEncoding.EncodeToString([]byte("new"))}, nil)
	if got, err := os.ReadFile(b.repo + "/w"); string(got) != "new" {
		t.Errorf("wrote %q (%v)", got, err)
	}
	if err := c.call("fs/open", object{"handleId": "x", "path": uri(b.out + "/f"), "mode": "replace", "sandbox": b.workspaceWrite()}, nil); err == nil {
		t.Error("a file outside was opened for writing")
	}
	if got, _ := os.ReadFile(b.out + "/f"); string(got) != "out" {
		t.Errorf("the file outside holds %q", got)
	}
}
