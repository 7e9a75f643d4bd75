package fsops_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// model is a tree in memory. It computes what a view has to answer about such a
// tree, name by name and without descriptors.
type model struct {
	policy policy
	nodes  map[string]string // path to "dir", "file" or "-> target"
}

// at returns the access of path, at which node is.
func (m model) at(path, node string) fsops.Access {
	access := m.policy.access(path)
	if node != "dir" && access != fsops.Hidden && m.policy.deniesFile(path) {
		return fsops.Denied
	}
	return access
}

// errByRule is the ENOENT of a hidden path.
var errByRule = fmt.Errorf("hidden: %w", unix.ENOENT)

// resolve returns the canonical path that a path leads to, and the node there, ""
// when nothing is there.
func (m model) resolve(path string, follow bool) (canonical, node string, err error) {
	cur, rest, links := "/", strings.Split(path, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			cur = filepath.Dir(cur)
			continue
		}
		next := filepath.Join(cur, name)
		access, leads := m.policy.access(next), m.policy.leads(next)
		last := !slices.ContainsFunc(rest, func(s string) bool { return s != "" })
		switch {
		case access >= fsops.Read || leads:
		case m.policy.access(cur) == fsops.Denied, access == fsops.Denied && !last:
			return "", "", unix.EACCES
		case access == fsops.Hidden:
			return "", "", errByRule
		}
		node, ok := m.nodes[next]
		if !ok {
			if !last {
				return "", "", unix.ENOENT
			}
			return next, "", nil
		}
		if node != "dir" && access == fsops.Hidden {
			return "", "", errByRule
		}
		target, isLink := strings.CutPrefix(node, "-> ")
		switch {
		case isLink && (!last || follow):
			if links++; m.at(next, node) == fsops.Denied {
				return "", "", unix.EACCES
			} else if links > 40 {
				return "", "", unix.ELOOP
			}
			if filepath.IsAbs(target) {
				cur = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		case node != "dir" && !last && m.at(next, node) == fsops.Denied:
			return "", "", unix.EACCES
		case node != "dir" && !last:
			return "", "", unix.ENOTDIR
		}
		cur = next
	}
	if m.policy.access(cur) == fsops.Hidden && !m.policy.leads(cur) {
		return "", "", unix.ENOENT
	}
	return cur, m.nodes[cur], nil
}

// answer returns what a view has to answer to the operation on path.
func (m model) answer(op, path string) (string, error) {
	canonical, node, err := m.resolve(path, op != "rm")
	if err == nil && node == "" && op != "write" {
		err = unix.ENOENT
	}
	if err != nil {
		return "", err
	}
	access := m.at(canonical, node)
	inside := m.policy.access(filepath.Dir(canonical))
	refused := map[fsops.Access]error{fsops.Hidden: unix.ENOENT, fsops.Denied: unix.EACCES, fsops.Read: unix.EROFS}
	switch op {
	case "real":
		return canonical, nil
	case "stat":
		if access < fsops.Read {
			return node + " blank", nil
		}
		return node, nil
	case "read":
		switch {
		case access == fsops.Denied:
			return "", unix.EACCES
		case node == "dir":
			return "", invalid
		}
		return canonical, nil
	case "list":
		switch {
		case access == fsops.Denied:
			return "", unix.EACCES
		case node != "dir":
			return "", unix.ENOTDIR
		}
		return m.list(canonical), nil
	case "write":
		switch {
		case node == "dir" && access == fsops.Denied:
			return "", unix.EACCES
		case node == "dir":
			return "", unix.EISDIR
		case refused[access] != nil:
			return "", refused[access]
		case node == "" && inside != fsops.Write:
			return "", unix.EROFS
		}
		return "", nil
	case "rm":
		switch {
		case m.policy.bound(canonical) && (access == fsops.Write || inside == fsops.Write):
			return "", unix.EBUSY
		case refused[access] != nil:
			return "", refused[access]
		case inside != fsops.Write:
			return "", unix.EROFS
		case node == "dir" && slices.ContainsFunc(slices.Collect(maps.Keys(m.nodes)), func(p string) bool { return filepath.Dir(p) == canonical }):
			return "", unix.ENOTEMPTY
		}
		return "", nil
	}
	panic(op)
}

func (m model) list(dir string) string {
	var names []string
	for path, node := range m.nodes {
		if path == "/" || filepath.Dir(path) != dir {
			continue
		}
		access := m.policy.access(path)
		if access == fsops.Hidden && (node != "dir" || !m.policy.leads(path)) {
			continue
		}
		mark := map[string]string{"dir": "/", "file": ""}[node]
		if strings.HasPrefix(node, "-> ") {
			canonical, target, err := m.resolve(path, true)
			switch {
			case err == unix.EACCES, err == nil && target != "" && m.at(canonical, target) == fsops.Denied:
				mark = "?"
			case err == errByRule:
				mark = "?"
			case err != nil || target == "":
				continue
			default:
				mark = map[string]string{"dir": "/", "file": ""}[target]
			}
		}
		names = append(names, filepath.Base(path)+mark)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestViewModel compares a view with the model on random trees under random
// rules.
func TestViewModel(t *testing.T) {
	t.Parallel()
	top := tree(t, "elsewhere/")
	rapid.Check(t, func(t *rapid.T) {
		root := rig.Value(os.MkdirTemp(top, ""))
		defer os.RemoveAll(root)
		m := model{policy: policy{denied: []string{"n"}}, nodes: map[string]string{}}
		for dir := root; dir != "/"; dir = filepath.Dir(dir) {
			m.nodes[dir] = "dir"
		}
		m.nodes["/"] = "dir"

		name := rapid.SampledFrom([]string{"a", "b", "c", "n"})
		below := func(dirs ...string) string { return filepath.Join(append([]string{root}, dirs...)...) }
		path := rapid.Custom(func(t *rapid.T) string { return below(rapid.SliceOfN(name, 0, 4).Draw(t, "path")...) })
		target := rapid.Custom(func(t *rapid.T) string {
			up := rapid.SampledFrom([]string{"", "", "../", "../../", "./", root + "/", root + "/a/../"}).Draw(t, "from")
			return up + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "..", "n"}), 1, 3).Draw(t, "to"), "/")
		})
		for range rapid.IntRange(1, 14).Draw(t, "nodes") {
			p := path.Draw(t, "node")
			if m.nodes[p] != "" || m.nodes[filepath.Dir(p)] != "dir" {
				continue
			}
			switch rapid.IntRange(0, 4).Draw(t, "type") {
			case 0:
				m.nodes[p] = "file"
				rig.Must(t, os.WriteFile(p, []byte(p), 0o600))
			case 1, 2:
				to := target.Draw(t, "target")
				m.nodes[p] = "-> " + to
				rig.Must(t, os.Symlink(to, p))
			default:
				m.nodes[p] = "dir"
				rig.Must(t, os.Mkdir(p, 0o700))
			}
		}
		access := rapid.SampledFrom([]fsops.Access{fsops.Denied, fsops.Read, fsops.Write})
		if rapid.Bool().Draw(t, "all") { // never to be written: links lead there too
			m.policy.rules = append(m.policy.rules, rule{"/", fsops.Read})
		}
		for range rapid.IntRange(1, 5).Draw(t, "rules") {
			r := rule{path.Draw(t, "rule"), access.Draw(t, "access")}
			if !slices.ContainsFunc(m.policy.rules, func(o rule) bool { return o.path == r.path }) {
				m.policy.rules = append(m.policy.rules, r)
			}
		}
		slices.SortFunc(m.policy.rules, func(a, b rule) int { return cmp.Compare(len(b.path), len(a.path)) })
		v, err := fsops.NewView(fsops.Rules{
			Access: m.policy.access, DeniesFile: m.policy.deniesFile, Leads: m.policy.leads, Bound: m.policy.bound,
		})
		rig.Must(t, err)
		defer v.Close()

		compare := func(op, p string) {
			if c, _, err := m.resolve(p, true); err == nil && !covers(c, root) {
				return // a link leads out of the tree of the model
			}
			want, wantErr := m.answer(op, p)
			got, gotErr := operation(context.Background(), v, "", op+" "+p)
			if op == "stat" {
				got = strings.Replace(got, " link", "", 1)
			}
			if op == "real" {
				want = strings.TrimPrefix(want, "/")
			}
			_, wantInvalid := errors.AsType[fsops.InvalidError](wantErr)
			_, gotInvalid := errors.AsType[fsops.InvalidError](gotErr)
			errno, _ := errors.AsType[unix.Errno](wantErr)
			if got != want || wantInvalid != gotInvalid || (wantErr == nil) != (gotErr == nil) || errno != 0 && !errors.Is(gotErr, errno) {
				t.Fatalf("%s %s: got %q, %v, want %q, %v\ntree %q\nrules %v", op, p, got, gotErr, want, wantErr, m.nodes, m.policy.rules)
			}
		}
		for range 6 {
			p := path.Draw(t, "path")
			for _, op := range []string{"read", "stat", "real", "list"} {
				compare(op, p)
			}
		}
		compare(rapid.SampledFrom([]string{"write", "rm"}).Draw(t, "change"), path.Draw(t, "changed"))
	})
}
