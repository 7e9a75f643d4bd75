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
//	rm P     rmr P     rmf P     cp P Q     cpr P Q  mv P Q   mvr P Q  grep P
//
// excl, swap, swapx, deep and mode write with options; lstat and lists do not follow links, and realm tolerates
// missing names. A "!" at the end of the word refuses links.
func operation(ctx context.Context, v fsops.FS, root, line string) (string, error) {
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
	case "write", "excl", "swap", "swapx", "deep", "mode":
		o := fsops.WriteOptions{Links: links, Exclusive: op == "excl" || op == "swapx", Parents: op == "deep"}
		if o.Atomic = strings.HasPrefix(op, "swap"); op == "mode" {
			o.Mode = new(uint32(0o640))
		}
		return "", fsops.WriteFile(ctx, v, p, []byte("new"), o)
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
	case "lstat":
		m, err := v.Stat(ctx, p, map[bool]fsops.Links{false: fsops.KeepLast, true: fsops.KeepRefuse}[refuse])
		return fmt.Sprintf("%d %v %v %s", m.Type, m.IsSymlink, m.Known, m.Target), err
	case "real", "realm":
		got, err := v.Canonicalize(ctx, p, op == "realm")
		return strings.TrimPrefix(got, root+"/"), err
	case "list", "lists":
		entries, err := v.ReadDirectory(ctx, p, op == "lists")
		var names []string
		for _, e := range entries {
			if op == "lists" {
				e.Name = fmt.Sprint(e.Name, e.Type, e.Known)
			}
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
	case "grep":
		o := search
		o.Pattern, o.Hidden, o.NoIgnore = ".", true, true
		res, err := v.Search(ctx, p, o)
		var out []string
		for _, f := range res.Files {
			out = append(out, strings.TrimPrefix(f.Path, p+"/")+"="+f.Matches[0].Text)
		}
		return strings.Join(out, " "), err
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

const ok = unix.Errno(0)

// errnos are the first error numbers by their names.
var errnos = func() map[string]unix.Errno {
	all := map[string]unix.Errno{}
	for errno := unix.EPERM; errno <= unix.ELOOP; errno++ {
		all[unix.ErrnoName(errno)] = errno
	}
	return all
}()

// outcomes returns the operations of a table of testdata/views.txt, each with the error that it has to
// have: ok for none, and nil for any.
func outcomes(t *testing.T, table string) map[string]error {
	t.Helper()
	words := map[string]error{"ok": ok, "any": nil, "invalid": invalid}
	for name, errno := range errnos {
		words[name] = errno
	}
	all := map[string]error{}
	for _, row := range rig.Rows(t, "testdata/views.txt", table, 2) {
		want, known := words[row[0]]
		rig.Is(t, known, true, "%s is an outcome", row[0])
		for line := range strings.SplitSeq(row[1], ", ") {
			_, twice := all[line]
			rig.Is(t, twice, false, "%s is there twice", line)
			all[line] = want
		}
	}
	return all
}

// TestView has the rows of sandbox.md 9 about files, and those of the public
// attempts to escape.
func TestView(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]policy{
		"read-only place": readOnly, "denied": readOnly, "workspace": workspace, "partial view": partial, "nothing": {}, "whole": whole,
		"rule below a missing name": {rules: []rule{{"/", fsops.Read}, {"repo", fsops.Write}, {"repo/missing/x", fsops.Read}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// What fails changes nothing, so one tree is enough for all that does.
			root := tree(t, viewTree...)
			before, v := list(t, root), policy.view(t, root)
			for line, want := range outcomes(t, name) {
				t.Run(line, func(t *testing.T) {
					root, v := root, v
					copies := strings.HasPrefix(line, "cpr") // what was copied before the error stays
					if want == ok || copies {
						root = tree(t, viewTree...)
						v = policy.view(t, root)
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
	policies := map[string]policy{"readOnly": readOnly, "partial": partial, "workspace": workspace}
	for _, row := range rig.Rows(t, "testdata/views.txt", "results", 3) {
		t.Run(row[1], func(t *testing.T) {
			t.Parallel()
			root := tree(t, viewTree...)
			grow(t, root, "repo/made =made")
			want := strings.NewReplacer("$ROOT", root, "$VERSION", string(rig.Value(os.ReadFile("/proc/version")))).Replace(row[2])
			files := map[bool]fsops.FS{true: host, false: policies[row[0]].view(t, root)}[row[0] == "direct"]
			rig.Is(t, rig.Value(operation(t.Context(), files, root, row[1])), want, "")
		})
	}
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
