package fsops_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// policy is a list of rules, which view sorts by length, longest path first,
// and denied endings of file names.
type policy struct {
	rules  []rule
	denied []string
}

type rule struct {
	path   string
	access fsops.Access
}

// covers reports whether path is dir or below it.
func covers(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}

func (p policy) access(path string) fsops.Access {
	for _, r := range p.rules {
		if covers(path, r.path) {
			return r.access
		}
	}
	return fsops.Hidden
}

func (p policy) deniesFile(path string) bool {
	return slices.ContainsFunc(p.denied, func(end string) bool { return strings.HasSuffix(path, end) })
}

func (p policy) leads(path string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		return r.access >= fsops.Read && r.path != path && covers(r.path, path)
	})
}

func (p policy) bound(path string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return covers(r.path, path) })
}

// view makes a view under p, whose relative paths are below root.
func (p policy) view(t testing.TB, root string, hidden ...int) *fsops.View {
	t.Helper()
	p.rules = slices.Clone(p.rules)
	for i, r := range p.rules {
		if !filepath.IsAbs(r.path) {
			p.rules[i].path = filepath.Join(root, r.path)
		}
	}
	slices.SortFunc(p.rules, func(a, b rule) int { return cmp.Compare(len(b.path), len(a.path)) })
	rules := fsops.Rules{Access: p.access, Leads: p.leads, Bound: p.bound, HiddenPIDs: hidden}
	if p.denied != nil {
		rules.DeniesFile = p.deniesFile
	}
	v := rig.Value(fsops.NewView(rules))
	t.Cleanup(func() { rig.Check(t, v.Close()) })
	return v
}

// The policies of the tables below.
var (
	// readOnly may read everything but what is denied.
	readOnly = policy{
		rules:  []rule{{"/", fsops.Read}, {"repo/vault", fsops.Denied}, {"repo/secret.txt", fsops.Denied}},
		denied: []string{".env"},
	}
	// workspace may also write below repo, but for its protected names.
	workspace = policy{
		rules: append([]rule{
			{"repo", fsops.Write}, {"repo/.git", fsops.Read}, {"repo/.agents", fsops.Read}, {"repo/.codex", fsops.Read},
			{"repo/lost", fsops.Write}, {"new", fsops.Write},
			{"repo/a", fsops.Denied}, {"repo/a/b", fsops.Write},
		}, readOnly.rules...),
		denied: readOnly.denied,
	}
	// partial may read nothing but parts of repo.
	partial = policy{rules: []rule{
		{"repo/d", fsops.Read}, {"repo/d/w", fsops.Write}, {"repo/d/no", fsops.Denied}, {"repo/vault", fsops.Denied},
		{"repo/f.txt/x", fsops.Read},
	}}
	// whole may write everything but one file.
	whole = policy{rules: []rule{{"/", fsops.Write}, {"repo/secret.txt", fsops.Denied}}}
)

var viewTree = []string{
	"repo/f.txt =text", "repo/a.env =key", "repo/sub/b.env =key", "repo/sub/f =sub", "repo/secret.txt =secret",
	"repo/vault/x =secret", "repo/vault/deep/y =secret", "repo/.git/config =git", "repo/.codex/",
	"repo/a/x =hidden", "repo/a/b/f =open", "repo/fifo |", "repo/link.env -> f.txt", "repo/ro/x =x",
	"repo/d/f =d", "repo/d/w/f =w", "repo/d/no/f =no", "repo/hide/f =hide",
	"repo/out -> ../other/f", "repo/outdir -> ../other", "repo/dang -> ../other/none", "repo/dang2 -> made",
	"repo/tovault -> vault", "repo/tosecret -> vault/x", "repo/togit -> .git", "repo/todir -> sub", "repo/tofile -> f.txt",
	"repo/tohide -> hide", "repo/gone -> nowhere", "repo/loop -> loop", "repo/slash -> f.txt/", "repo/up -> ../repo/sub/..//f.txt",
	"repo/toself -> /proc/self/environ", "repo/empty/",
	"other/f =other", "other/e.env =key",
}

// operation does one operation of a view. line has its word and paths, below
// root if relative:
//
//	read P   write P   mkdir P   mkdirs P   stat P   real P   list P   walk P
//	rm P     rmr P     rmf P     cp P Q     cpr P Q  mv P Q   mvr P Q
//
// A "!" at the end of the word refuses links.
func operation(ctx context.Context, v *fsops.View, root, line string) (string, error) {
	words := strings.Fields(line)
	for i, w := range words[1:] {
		if !filepath.IsAbs(w) {
			words[i+1] = filepath.Join(root, w)
		}
	}
	op, refuse := strings.CutSuffix(words[0], "!")
	links := fsops.FollowLinks
	if refuse {
		links = fsops.RefuseLinks
	}
	p := words[1]
	switch op {
	case "read":
		data, err := fsops.ReadFile(ctx, v, p, links, nil)
		return string(data), err
	case "write":
		return "", fsops.WriteFile(ctx, v, p, []byte("new"), links)
	case "mkdir":
		return "", v.CreateDirectory(ctx, p, false, links)
	case "mkdirs":
		return "", v.CreateDirectory(ctx, p, true, links)
	case "stat":
		m, err := v.Stat(ctx, p, links)
		if err != nil {
			return "", err
		}
		kind := map[bool]string{m.IsDirectory: "dir", m.IsFile: "file"}[true]
		if m.IsSymlink {
			kind += " link"
		}
		if m.Size == 0 && m.CreatedAtMs == 0 && m.ModifiedAtMs == 0 {
			kind += " blank"
		}
		return kind, nil
	case "real":
		got, err := v.Canonicalize(ctx, p)
		return strings.TrimPrefix(got, root+"/"), err
	case "list":
		entries, err := v.ReadDirectory(ctx, p)
		var names []string
		for _, e := range entries {
			mark := map[bool]string{e.IsDirectory: "/", e.IsFile: ""}
			if m, ok := mark[true]; ok {
				names = append(names, e.Name+m)
			} else {
				names = append(names, e.Name+"?")
			}
		}
		slices.Sort(names)
		return strings.Join(names, " "), err
	case "walk", "follow":
		o := limits
		o.FollowDirectoryLinks = op == "follow"
		res, err := v.Walk(ctx, p, o)
		var out []string
		for _, e := range res.Entries {
			out = append(out, strings.TrimPrefix(e.Path, p+"/")+map[bool]string{true: "/"}[e.IsDirectory])
		}
		for _, e := range res.Errors {
			out = append(out, fmt.Sprintf("%s: %v", strings.TrimPrefix(e.Path, p+"/"), e.Err))
		}
		return strings.Join(out, "\n"), err
	case "rm", "rmf":
		return "", v.Remove(ctx, p, false, op == "rmf", links)
	case "rmr", "rmrf":
		return "", v.Remove(ctx, p, true, op == "rmrf", links)
	case "cp", "cpr":
		return "", v.Copy(ctx, p, words[2], op == "cpr")
	case "mv", "mvr":
		return "", v.Rename(ctx, p, words[2], op == "mvr")
	}
	panic("unknown operation " + op)
}

// TestView has the rows of sandbox.md 9 about files, and those of the public
// attempts to escape.
func TestView(t *testing.T) {
	t.Parallel()
	const ok = unix.Errno(0)
	tests := []struct {
		name   string
		policy policy
		ops    map[string]error // ok if there is none
	}{
		{"read-only place", readOnly, map[string]error{
			"write repo/f.txt": unix.EROFS, "write repo/new": unix.EROFS, "write /etc/hosts": unix.EROFS,
			"write repo/nope/new": unix.ENOENT, "write repo/sub": unix.EISDIR, "write repo/f.txt/x": unix.ENOTDIR,
			"mkdir repo/new": unix.EROFS, "mkdirs repo/new/x": unix.EROFS, "mkdirs repo/.agents/skills": unix.EROFS,
			"mkdir repo/sub": unix.EROFS, "mkdirs repo/sub": ok, "mkdir repo/nope/x": unix.ENOENT,
			"rm repo/f.txt": unix.EROFS, "rmr repo": unix.EROFS, "rmr repo/.git": unix.EROFS, "rmrf /": unix.EROFS,
			"rm repo/nope": unix.ENOENT, "rmf repo/nope": ok, "rmf repo/f.txt/x": unix.ENOTDIR,
			"cp repo/f.txt repo/g": unix.EROFS, "cp repo/f.txt repo/sub/f": unix.EROFS, "cpr repo/sub repo/n": unix.EROFS,
			"cpr repo/sub repo/ro": unix.EROFS, "cp repo/out repo/o2": unix.EROFS,
			"mv repo/f.txt repo/g": unix.EROFS, "mv repo/.git repo/x": unix.EROFS, "mvr /etc/hosts repo/h": unix.EROFS,
			"write repo/out": unix.EROFS, "write repo/dang": unix.EROFS, "write repo/fifo": unix.EROFS,
		}},
		// A directory could bring contents to a protected path below.
		{"rule below a missing name", policy{rules: []rule{{"/", fsops.Read}, {"repo", fsops.Write}, {"repo/missing/x", fsops.Read}}}, map[string]error{
			"mv repo/ro repo/missing": unix.EBUSY, "mvr repo/ro repo/missing": unix.EBUSY,
			"mkdir repo/missing": ok, "mv repo/f.txt repo/missing": ok, "mv repo/ro repo/missed": ok,
		}},
		{"denied", readOnly, map[string]error{
			"read repo/vault/x": unix.EACCES, "stat repo/vault/x": unix.EACCES, "real repo/vault/x": unix.EACCES,
			"write repo/vault/x": unix.EACCES, "rm repo/vault/x": unix.EACCES, "cp repo/vault/x repo/y": unix.EACCES,
			"read repo/vault/none": unix.EACCES, "stat repo/vault/none": unix.EACCES, "mkdirs repo/vault/n/m": unix.EACCES,
			"stat repo/vault/deep": unix.EACCES, "list repo/vault/deep": unix.EACCES, "walk repo/vault/deep": unix.EACCES,
			"read repo/tosecret": unix.EACCES, "list repo/tovault": unix.EACCES, "real repo/tosecret": unix.EACCES,
			"read repo/secret.txt": unix.EACCES, "read repo/secret.txt/x": unix.EACCES, "list repo/secret.txt": unix.EACCES,
			"read repo/a.env": unix.EACCES, "write repo/a.env": unix.EACCES, "read repo/link.env": unix.EACCES,
			"stat repo/link.env": unix.EACCES, "read repo/sub/b.env": unix.EACCES, "read! repo/link.env": unix.EACCES,
			"list repo/vault": unix.EACCES, "read repo/vault": unix.EACCES, "mkdirs repo/vault": unix.EACCES,
			"cpr repo/vault other/v": unix.EROFS, "rm repo/vault": unix.EACCES, "rmr repo/vault": unix.EACCES,
			"mv repo/vault repo/v": unix.EACCES, "mv repo/a.env repo/b": unix.EACCES, "rm repo/a.env": unix.EACCES,
			"real repo/vault": ok, "real repo/a.env": ok, "stat repo/vault": ok,
		}},
		{"workspace", workspace, map[string]error{
			"write repo/new": ok, "write repo/f.txt": ok, "write repo/dang2": ok, "write repo/tofile": ok, "write repo/lost": ok,
			"write repo/.git/config": unix.EROFS, "write repo/.git/new": unix.EROFS, "write repo/togit/config": unix.EROFS,
			"write /etc/hosts": unix.EROFS, "write other/x": unix.EROFS, "write new": unix.EROFS, "mkdirs new/x": unix.EROFS,
			"write repo/out": unix.EROFS, "write repo/outdir/x": unix.EROFS, "write repo/dang": unix.EROFS,
			"write repo/n.env": unix.EACCES, "mkdir repo/dir.env": ok, "write repo/fifo": invalid,
			"mkdir repo/.agents": unix.EROFS, "mkdirs repo/.agents": unix.EROFS, "mkdirs repo/.agents/skills": unix.EROFS,
			"stat repo/.agents": unix.ENOENT, "mkdir repo/.codex": unix.EROFS, "mkdirs repo/.codex": unix.EROFS,
			"mkdir repo/sub": unix.EEXIST, "mkdirs repo/sub": ok, "mkdirs repo": ok, "mkdir repo": unix.EEXIST,
			"mkdirs repo/todir": ok, "mkdir repo/todir": unix.EEXIST, "mkdirs repo/gone": unix.EEXIST, "mkdirs repo/f.txt": unix.EEXIST,
			"mkdirs repo/tovault": unix.EACCES, "mkdirs repo/x/y/z": ok, "mkdirs repo/f.txt/x": unix.ENOTDIR,
			"mkdirs! repo/todir/x": unix.ENOTDIR, "mkdirs! repo/todir": unix.ENOTDIR, "mkdir! repo/todir": unix.EEXIST,
			"mkdirs! repo/n1/n2": ok, "mkdirs! repo/f.txt": unix.ENOTDIR,
			"rm repo/f.txt": ok, "rm repo/out": ok, "rm repo/empty": ok, "rm repo/ro": unix.ENOTEMPTY, "rmr repo/ro": ok,
			"rm repo/tovault": ok, "rm! repo/out": invalid, "rm! repo/todir/f": unix.ENOTDIR, "rmr! repo/f.txt": nil,
			"rmr repo": unix.EBUSY, "rmr repo/.git": unix.EBUSY, "rm repo/.git/config": unix.EROFS, "rmr repo/a": unix.EBUSY,
			"rm repo/vault": unix.EBUSY, "rmr repo/vault": unix.EBUSY, "rm repo/secret.txt": unix.EBUSY,
			"rm repo/a.env": unix.EACCES, "rm repo/link.env": unix.EACCES, "rmr repo/sub": unix.EACCES, "rmr .": unix.EROFS,
			"mv repo/.git repo/x": unix.EBUSY, "mvr repo/f.txt repo/.git": unix.EBUSY, "mvr repo/f.txt repo/.git/config": unix.EROFS,
			"mv repo/f.txt repo/.agents": unix.EROFS, "mv repo/f.txt repo/g": ok, "mvr repo/f.txt repo/fifo": ok,
			"mv repo/f.txt repo/fifo": unix.EEXIST, "mv repo/f.txt other/f2": unix.EROFS, "mv other/f repo/f2": unix.EROFS,
			"mv repo/f.txt repo/x.env": unix.EACCES, "mv repo/a.env repo/x": unix.EACCES, "mv repo/sub repo/sub2": unix.EACCES,
			"mv repo/ro repo/ro2": ok, "mv repo/a repo/a2": unix.EBUSY, "mv repo repo2": unix.EBUSY, "mv repo/nope repo/x": unix.ENOENT,
			"mvr repo/f.txt repo/secret.txt": unix.EBUSY, "mvr repo/f.txt repo/a.env": unix.EACCES,
			"cp repo/f.txt repo/g": ok, "cp repo/f.txt repo/.git/g": unix.EROFS, "cp repo/f.txt repo/.git/config": unix.EROFS,
			"cp repo/f.txt repo/out": unix.EROFS, "cp repo/f.txt repo/g.env": unix.EACCES, "cp repo/a.env repo/g": unix.EACCES,
			"cp repo/f.txt repo/f.txt": invalid, "cp repo/f.txt repo/sub": unix.EISDIR, "cp other/f repo/g": ok,
			"cp repo/link.env repo/l2": unix.EACCES, "cp repo/out repo/o2": ok, "cp repo/out repo/f.txt": unix.EEXIST,
			"cp repo/out repo/.git/o": unix.EROFS, "cp repo/fifo repo/g": invalid, "cp repo/out repo/l.env": unix.EACCES,
			"cpr repo repo/.git": unix.EROFS, "cpr repo/ro repo/.git": unix.EROFS, "cpr repo/ro repo/.agents": unix.EROFS,
			"cpr repo/ro repo/ro/x": invalid, "cpr repo/ro repo/n": ok, "cpr repo/ro repo/todir": ok, "cpr repo/sub repo/n": unix.EACCES,
			"cpr other repo/o": unix.EACCES, "cpr repo/ro repo/a/b": ok, "cpr repo/ro repo/vault": unix.EACCES,
			"cpr repo/vault repo/n": unix.EACCES, "cpr repo/ro other/n": unix.EROFS, "cpr repo/ro repo/gone": unix.EEXIST,
			"read repo/a/b/f": ok, "write repo/a/b/f": ok, "read repo/a/x": unix.EACCES, "list repo/a": unix.EACCES, "list repo/a/b": ok,
			"write repo/a/new": unix.EACCES, "mkdirs repo/a/b/c": ok, "rmr repo/a/b": unix.EBUSY,
			"rm repo/a/b/f": ok, "read repo/fifo": invalid, "read /dev/zero": invalid,
			"read repo/loop": unix.ELOOP, "stat repo/loop": unix.ELOOP, "read repo/slash": unix.ENOTDIR, "write repo/slash": unix.ENOTDIR,
			"read repo/up": ok, "read repo": invalid, "read! repo/tofile": unix.ELOOP, "write! repo/tofile": unix.ELOOP,
			"read! repo/todir/f": unix.ENOTDIR, "stat! repo/tofile": invalid, "stat! repo/todir/f": unix.ENOTDIR, "list repo/f.txt": unix.ENOTDIR,
		}},
		{"partial view", partial, map[string]error{
			"read repo/f.txt": unix.ENOENT, "stat repo/f.txt": unix.ENOENT, "write repo/f.txt": unix.ENOENT, "rm repo/f.txt": unix.ENOENT,
			"read /etc/hosts": unix.ENOENT, "write repo/new": unix.ENOENT, "mkdirs repo/new/x": unix.ENOENT, "list repo/hide": unix.ENOENT,
			"walk repo/hide": unix.ENOENT, "cp repo/f.txt repo/d/w/g": unix.ENOENT, "cp repo/d/f repo/g": unix.ENOENT,
			"read repo/tofile": unix.ENOENT, "read /dev/null": unix.ENOENT,
			"read repo/d/f": ok, "write repo/d/f": unix.EROFS, "write repo/d/w/f": ok, "write repo/d/w/n": ok, "read repo/d/no/f": unix.EACCES,
			"list repo/vault": unix.EACCES, "read repo/vault/x": unix.EACCES, "read repo/f.txt/x": unix.ENOENT, "mkdirs repo": ok,
			"mkdir repo": unix.EROFS, "rmr repo/d": unix.EROFS, "rmr repo/d/w": unix.EBUSY, "rmr repo": unix.ENOENT,
			"read repo/vault": unix.EACCES, "read repo": invalid, "list /": ok, "cpr repo repo/d/w/n": invalid,
		}},
		{"nothing", policy{}, map[string]error{
			"stat /": unix.ENOENT, "list /": unix.ENOENT, "read repo/f.txt": unix.ENOENT, "mkdirs repo/x": unix.ENOENT,
			"rmrf repo": ok, "rmr /": unix.ENOENT, "real /": unix.ENOENT, "walk /": unix.ENOENT,
		}},
		{"whole", whole, map[string]error{
			"rmr /": unix.EBUSY, "rmr repo": unix.EBUSY, "write repo/f.txt": ok, "write repo/secret.txt": unix.EACCES,
			"rmr repo/sub": ok, "mv repo/vault repo/v": ok, "mv / repo/root": unix.EBUSY, "mv repo/f.txt /": unix.EBUSY,
			"mv repo/vault repo/sub/../../repo/v2": ok,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// What fails changes nothing, so one tree is enough for all that does.
			root := tree(t, viewTree...)
			before, v := list(t, root), tt.policy.view(t, root)
			for line, want := range tt.ops {
				t.Run(line, func(t *testing.T) {
					root, v := root, v
					copies := strings.HasPrefix(line, "cpr") // what was copied before the error stays
					if want == ok || copies {
						root = tree(t, viewTree...)
						v = tt.policy.view(t, root)
					}
					_, err := operation(t.Context(), v, root, line)
					switch want {
					case ok:
						rig.Must(t, err)
						return
					case nil: // any error
						if err == nil {
							t.Error("no error")
						}
					default:
						checkErr(t, err, want)
					}
					after := list(t, root)
					if copies {
						after = slices.DeleteFunc(after, func(s string) bool { return !slices.Contains(before, s) })
					}
					rig.Same(t, "changed although it failed", before, after)
				})
			}
		})
	}
}

// TestViewResults: what operations find under a policy, and what they hide.
func TestViewResults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		policy     policy
		line, want string
	}{
		{readOnly, "stat repo/vault", "dir blank"},
		{readOnly, "stat repo/tovault", "dir link blank"},
		{readOnly, "stat repo/secret.txt", "file blank"},
		{readOnly, "stat repo/a.env", "file blank"},
		{readOnly, "stat repo/f.txt", "file"},
		{readOnly, "stat repo/tofile", "file link"},
		{readOnly, "stat! repo/f.txt", "file"},
		{readOnly, "stat /", "dir"},
		{readOnly, "read repo/up", "text"},
		{readOnly, "read repo/todir/f", "sub"},
		{readOnly, "read /proc/version", string(must(os.ReadFile("/proc/version")))},
		{readOnly, "real repo/up", "repo/f.txt"},
		{readOnly, "real repo/out", "other/f"},
		{readOnly, "real /", "/"},
		{partial, "stat repo", "dir blank"},
		{partial, "stat /", "dir blank"},
		{partial, "list repo", "d/ vault/"},
		{partial, "list repo/d", "f no/ w/"},
		{partial, "walk repo", "d/\nvault/\nd/f\nd/no/\nd/w/\nd/w/f\nvault: permission denied\nd/no: permission denied"},
		{workspace, "list repo/.codex", ""},
		{readOnly, "list repo", ".codex/ .git/ a.env a/ d/ dang2 empty/ f.txt fifo? hide/ link.env? out outdir/ ro/ secret.txt sub/ " +
			"todir/ tofile togit/ tohide/ tosecret? toself? tovault? up vault/"},
		{readOnly, "walk repo/sub", "b.env\nf"},
		{readOnly, "follow repo/outdir", "e.env\nf"},
		{readOnly, "walk repo/outdir", ""},
		{readOnly, "walk repo/f.txt", ""},
		{readOnly, "walk repo/vault", repoRelative + ": permission denied"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			t.Parallel()
			root := tree(t, viewTree...)
			grow(t, root, "repo/made =made")
			want := tt.want
			if i := strings.Index(want, repoRelative); i >= 0 {
				want = strings.Replace(want, repoRelative, filepath.Join(root, "repo/vault"), 1)
			}
			got := rig.Value(operation(t.Context(), tt.policy.view(t, root), root, tt.line))
			if tt.line == "list repo" && tt.policy.denied != nil {
				want = strings.Replace(want, " out ", " made out ", 1)
			}
			rig.Is(t, got, want, "")
		})
	}
}

const repoRelative = "{vault}"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestViewCopiesNoSetID: a copy under a policy lends nobody the ids of its
// owner.
func TestViewCopiesNoSetID(t *testing.T) {
	t.Parallel()
	root := tree(t, "f =x", "over =y")
	v := whole.view(t, root)
	rig.Must(t, unix.Chmod(filepath.Join(root, "f"), 0o6755))
	for _, name := range []string{"new", "over"} {
		rig.Must(t, v.Copy(t.Context(), filepath.Join(root, "f"), filepath.Join(root, name), false))
		var st unix.Stat_t
		rig.Check(t, unix.Stat(filepath.Join(root, name), &st))
		rig.Is(t, st.Mode&0o7777, 0o755, "mode of %s", name)
	}
}
