package agent

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// box is the fixture of sandbox.md 17: a workspace with a repository, a vault
// and links, and things beside it.
type box struct{ root, repo, out string }

func newBox(t *testing.T) box {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	b := box{root, root + "/repo", root + "/out"}
	for path, text := range map[string]string{
		"repo/a.env": "secret", "repo/a.txt": "a", "repo/.git/HEAD": "ref", "repo/.git/config": "c",
		"repo/vault/x": "hidden", "repo/d/e/b.txt": "b", "repo/d/f": "f", "out/f": "out",
	} {
		file := filepath.Join(root, path)
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
	}
	err = errors.Join(os.Symlink(b.out, b.repo+"/link"), os.Symlink(b.repo+"/a.txt", b.repo+"/inner"),
		os.Symlink(b.repo+"/vault", b.repo+"/tovault"), syscall.Mkfifo(b.repo+"/fifo", 0o644))
	rig.Must(t, err)
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
