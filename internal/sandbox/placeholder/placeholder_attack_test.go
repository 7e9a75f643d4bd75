package placeholder

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// repository makes what a confined process would like to have at .git.
func repository(path string) error {
	return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(path+"/config", []byte("[core]\nfsmonitor = cmd\n"), 0o644))
}

// temporary returns the temporary name in root. An attacker learns it by
// inotify(7).
func temporary(root string) string {
	for _, name := range listingOf(root) {
		if strings.HasPrefix(name, tempPrefix) {
			return name
		}
	}
	return ""
}

// TestForgedAway: an attacker who has seen the temporary name and puts something
// there or beside it brings nothing to the protected name by that, and does not
// keep the placeholder from being removed.
func TestForgedAway(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"directory", "file"} {
		for _, suffix := range []string{"", "-"} {
			for _, settled := range []string{"release", "sweep"} {
				t.Run(kind+suffix+" "+settled, func(t *testing.T) {
					t.Parallel()
					root, state := t.TempDir(), t.TempDir()
					m := Missing{Parent: root, Name: ".git", Dir: kind == "directory"}
					p := openPlaceholders(t, state)
					var seen string
					p.ledger.step = func(step string) {
						if step == "made" && seen == "" {
							seen = temporary(root)
						}
					}
					release := hold(t, p, m)
					rig.Must(t, repository(filepath.Join(root, seen+suffix)))
					if settled == "sweep" {
						forget(t, p, root+"/.git")
						openPlaceholders(t, state)
					} else {
						release()
						hold(t, p, m)()
						hold(t, p)()
					}
					wantListing(t, root, seen+suffix+"/")
				})
			}
		}
	}
}

// forget closes the placeholders and the ledger without removing anything, as a
// crash does.
func forget(t *testing.T, p *Placeholders, path string) {
	t.Helper()
	locked := []io.Closer{p.ledger.file}
	for _, h := range p.held {
		locked = append(locked, os.NewFile(uintptr(h.fd), path))
		h.fd = -1
	}
	rig.Close(t, locked...)
	p.closed = true
	rig.Must(t, rig.Err(os.Lstat(path)))
}

// TestRaces: while a placeholder is removed, a user may put something at the
// protected name: it stays if it has content. An attacker may swap the file that
// was moved away: what he puts there does not come to the protected name.
func TestRaces(t *testing.T) {
	t.Parallel()
	users := func(path string) error {
		return errors.Join(os.WriteFile(path+"-new", []byte("user"), 0o644), os.Rename(path+"-new", path))
	}
	swap := func(path string) error {
		away := filepath.Join(filepath.Dir(path), temporary(filepath.Dir(path)))
		return errors.Join(os.Rename(away, path+"-kept"), os.WriteFile(away, []byte("attacker"), 0o644))
	}
	for _, tt := range []struct {
		name       string
		dir        bool
		seen, away func(path string) error
		want       string // at the name; empty: nothing
		kept       string // beside it
	}{
		{name: "nobody"},
		{name: "nobody, directory", dir: true},
		{name: "user's directory", dir: true, want: "[core]\nfsmonitor = cmd\n", seen: func(path string) error {
			return errors.Join(os.Remove(path), repository(path))
		}},
		{name: "user's file for the directory", dir: true, want: "user", seen: func(path string) error {
			return errors.Join(os.Remove(path), users(path))
		}},
		{name: "user's file", seen: users, want: "user"},
		{name: "user's directory for the file", want: "[core]\nfsmonitor = cmd\n", seen: func(path string) error {
			return errors.Join(os.Remove(path), repository(path))
		}},
		{name: "removed", seen: os.Remove},
		{name: "placeholder exchanged", away: swap, kept: ""},
		{name: "user's file exchanged", seen: users, away: swap, kept: "user"},
		{name: "user's file, and another", seen: users, away: users, want: "user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path := root + "/x"
			p := openPlaceholders(t, t.TempDir())
			p.ledger.step = func(step string) {
				do := map[string]func(string) error{"seen": tt.seen, "away": tt.away}[step]
				if do == nil {
					return
				}
				rig.Check(t, do(path))
			}
			hold(t, p, Missing{Parent: root, Name: "x", Dir: tt.dir})()
			p.ledger.step = nil
			rig.Is(t, contentOf(path), tt.want, "the name has")
			rig.Is(t, contentOf(path+"-kept"), tt.kept, "what was exchanged has")
			hold(t, p)()
			rig.Is(t, contentOf(path), tt.want, "the name has later")
		})
	}
}

// contentOf returns the content of a file, or of the file config in a directory.
func contentOf(path string) string {
	for _, name := range []string{path, path + "/config"} {
		if text, err := os.ReadFile(name); err == nil {
			return string(text)
		}
	}
	return ""
}

// TestForgedLedger: a ledger that an agent cannot have left, or one with
// another object's identity, removes nothing.
func TestForgedLedger(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		record func(r *record)
		file   func(path string) error
		swept  bool // the placeholder is gone
		stays  bool // the ledger is left alone
	}{
		{name: "good", swept: true},
		{name: "another object", record: func(r *record) { r.object.ino++ }},
		{name: "another device", record: func(r *record) { r.object.dev++ }},
		{name: "no object", record: func(r *record) { r.object = objectID{} }},
		{name: "another parent", record: func(r *record) { r.in.ino++ }},
		{name: "parent not clean", record: func(r *record) { r.parent += "/../" + filepath.Base(r.parent) }},
		{name: "parent relative", record: func(r *record) { r.parent = r.parent[1:] }},
		{name: "parent by a symlink", record: func(r *record) {
			if err := os.Symlink(r.parent, r.parent+"-link"); err != nil {
				panic(err)
			}
			r.parent += "-link"
		}},
		{name: "temporary name not ours", record: func(r *record) { r.temp = ".git" }},
		{name: "temporary name elsewhere", record: func(r *record) { r.temp = tempPrefix + "/../.git" }},
		{name: "others may read it", file: func(p string) error { return os.Chmod(p, 0o644) }, stays: true},
		{name: "two names", file: func(p string) error { return os.Link(p, p+"-too") }, stays: true},
		{name: "symlink", file: func(p string) error {
			real := filepath.Join(filepath.Dir(p), "real")
			return errors.Join(os.Rename(p, real), os.Symlink(real, p))
		}, stays: true},
		{name: "somebody else's", file: func(p string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(p, 0o640) // we cannot give files away: refused for its mode
			}
			return os.Chown(p, 65534, 65534)
		}, stays: true},
		{name: "directory", file: func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }, stays: true},
		{name: "fifo", file: func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }, stays: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, state := t.TempDir()+"/root", t.TempDir()
			rig.Must(t, mkdir(root))
			p := openPlaceholders(t, state)
			m := Missing{Parent: root, Name: ".git", Dir: true}
			hold(t, p, m)
			n := p.held[m].note
			if tt.record != nil {
				tt.record(&n.record)
			}
			rig.Must(t, n.put())
			ledger := p.ledger.file.Name()
			forget(t, p, root+"/.git")
			if tt.file != nil {
				rig.Must(t, tt.file(ledger))
			}
			openPlaceholders(t, state)
			want := ".git/"
			if tt.swept {
				want = ""
			}
			wantListing(t, root, want)
			rig.Is(t, rig.Err(os.Lstat(ledger)) == nil, tt.stays, "there is a ledger")
		})
	}
}
