package fsops_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// elsewhere is a Reading to which procfs is full of links to dir.
type elsewhere struct{ dir string }

func (e elsewhere) Name(_ fsops.Lookup, d fsops.Dir, name string) error {
	if d.Kind == fsops.Procfs && name == "kcore" {
		return unix.EPERM
	}
	return nil
}

func (e elsewhere) Object(_ fsops.Lookup, _ fsops.Dir, p fsops.Place) (fsops.Place, error) {
	if strings.HasSuffix(p.Path, "/comm") {
		p.Access, p.Kind = fsops.Write, fsops.Ordinary
	}
	return p, nil
}

func (e elsewhere) Follow(_ fsops.Dir, link fsops.Place) (text string, object fsops.Dir, err error) {
	switch link.Name {
	case "self":
		return "1", fsops.Dir{FD: -1}, nil
	case "root":
		fd, err := unix.Open(e.dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		return "", fsops.Dir{FD: fd, Path: e.dir, Access: fsops.Write}, err
	case "exe":
		fd, err := unix.MemfdCreate("no path", unix.MFD_CLOEXEC)
		return "", fsops.Dir{FD: fd, Path: "no path", Access: fsops.Write}, err
	}
	return "", object, unix.EACCES
}

// TestResolver: a path begins anywhere, and procfs is read as somebody else has it.
func TestResolver(t *testing.T) {
	t.Parallel()
	root := tree(t, "ws/f =text", "ws/d/e/", "ws/.git/config", "ws/l -> d/e", "ws/up -> ../ro", "ws/.env", "ws/to -> /proc/1/root/d", "ro/f", "secret/f", "secret/open/f")
	p := policy{denied: []string{".env"}}
	for path, access := range map[string]fsops.Access{
		"secret/open": fsops.Read, "ws/.git": fsops.Read, "secret": fsops.Denied, "ws": fsops.Write,
	} {
		p.rules = append(p.rules, rule{filepath.Join(root, path), access})
	}
	// The longest path first.
	p.rules = append(p.rules, rule{"/", fsops.Read})
	for i := range p.rules {
		for j := range i {
			if len(p.rules[j].path) < len(p.rules[i].path) {
				p.rules[i], p.rules[j] = p.rules[j], p.rules[i]
			}
		}
	}
	r := rig.Value(fsops.NewResolver(fsops.Rules{Access: p.access, Leads: p.leads, Bound: p.bound, DeniesFile: p.deniesFile}))
	defer r.Close()
	reading := elsewhere{filepath.Join(root, "ws")}

	for _, tt := range []struct {
		at, name string
		how      fsops.Lookup
		// want is the path found, with " +" if something is there, or an error.
		// After it come the errors of changing the object or of creating something,
		// and of removing it.
		want string
	}{
		{"ws", "f", 0, "ws/f + nil nil"},
		{"ws", "", 0, "ws + nil EBUSY"},
		{"ws", ".", 0, "ws + nil EBUSY"},
		{"ws/d", "../f", 0, "ws/f + nil nil"},
		{"ws/d", "..", 0, "ws + nil EBUSY"},
		{"ws", "new", 0, "ws/new nil nil"},
		{"ws", "new/x", 0, "ENOENT"},
		{"ws", "f/x", 0, "ENOTDIR"},
		{"ws/f", "x", 0, "ENOTDIR"},
		{"ws", ".git", 0, "ws/.git + EROFS EBUSY"},
		{"ws/.git", "new", 0, "ws/.git/new EROFS EROFS"},
		{"ws", ".env", 0, "ws/.env + EACCES EACCES"},
		{"ws", "new.env", 0, "ws/new.env EACCES nil"},
		{"ws", "l", 0, "ws/l + nil nil"},
		{"ws", "l", fsops.FollowLast, "ws/d/e + nil nil"},
		{"ws", "l/", 0, "ws/d/e + nil nil"},
		{"ws", "up/f", 0, "ro/f + EROFS EROFS"},
		{"ws", "../secret/f", 0, "EACCES"},
		{"secret", "f", 0, "EACCES"},
		{"secret", "open/f", 0, "secret/open/f + EROFS EROFS"},
		{"secret/open", "../f", 0, "EACCES"},
		{"ws", "/proc/self", 0, "/proc/self + EROFS EROFS"},
		{"ws", "/proc/self/comm", 0, "/proc/1/comm + nil EROFS"},
		{"ws", "/proc/self/status", 0, "/proc/1/status + EROFS EROFS"},
		{"ws", "/proc/kcore", 0, "EPERM"},
		{"ws", "/proc/self/root", fsops.FollowLast, "ws + nil EBUSY"},
		{"ws", "/proc/self/root/../ro", 0, "ro + EROFS EROFS"},
		{"ws", "/proc/self/root/f", 0, "ws/f + nil nil"},
		{"ws", "to/e", 0, "ws/d/e + nil nil"},
		{"ws", "/proc/self/exe", fsops.FollowLast, "no path + nil EROFS"},
		{"ws", "/proc/self/exe/", 0, "ENOTDIR"},
		{"ws", "/proc/self/cwd/x", 0, "EACCES"},
	} {
		fd := rig.Value(unix.Open(filepath.Join(root, tt.at), unix.O_PATH|unix.O_CLOEXEC, 0))
		d, err := r.At(fd, filepath.Join(root, tt.at))
		rig.Must(t, err)
		got := ""
		if p, err := r.Resolve(reading, d, tt.name, tt.how); err != nil {
			got = unix.ErrnoName(err.(unix.Errno))
		} else {
			got = describe(r, &p, root)
			p.Close()
		}
		rig.Is(t, got, tt.want, "%q at %s", tt.name, tt.at)
		for _, at := range []fsops.Dir{d, r.Base()} {
			name := tt.name
			if at != d && !strings.HasPrefix(name, "/") {
				name = filepath.Join(root, tt.at) + "/" + name
			}
			for _, how := range []fsops.Lookup{0, fsops.FollowLast} {
				held, unheld := object(r, reading, at, name, how), object(r, reading, at, name, how|fsops.Unheld)
				rig.Is(t, unheld, held, "%q at %s, unheld", name, at.Path)
			}
		}
		unix.Close(fd)
	}
	nowhere := fsops.Dir{FD: unix.AT_FDCWD, Path: "(unreachable)/x"}
	rig.Is[error](t, rig.Err(r.Resolve(reading, nowhere, "etc", 0)), unix.EACCES, "below a directory without a path")
	found := rig.Value(r.Resolve(reading, r.Base(), filepath.Join(root, "ws/f"), 0))
	defer found.Close()
	fd, err := r.Reopen(&found, unix.O_RDONLY)
	rig.Must(t, err)
	rig.Is(t, string(rig.Value(fsops.ReadFrom(fd, "f", nil))), "text", "reopened, it holds")
}

// object returns what a caller sees that does nothing to the name.
func object(r *fsops.Resolver, reading fsops.Reading, d fsops.Dir, name string, how fsops.Lookup) string {
	p, err := r.Resolve(reading, d, name, how)
	if err != nil {
		return err.Error()
	}
	defer p.Close()
	if !strings.HasPrefix(p.Path, "/") {
		p.Stat.Ino = 0 // another file each time
	}
	return fmt.Sprint(p.Exists(), p.Path, p.Access, p.Kind, p.Linked, p.Slash, p.Stat.Dev, p.Stat.Ino, p.Stat.Mode)
}

// TestUnheld: the directory of an object is opened only where it is asked for, or where a link
// leads on from it.
func TestUnheld(t *testing.T) {
	t.Parallel()
	root := tree(t, "d/e/f", "d/l -> e")
	r, err := fsops.NewResolver(fsops.Rules{
		Access: func(string) fsops.Access { return fsops.Read },
		Leads:  func(string) bool { return true }, Bound: func(string) bool { return false },
	})
	rig.Must(t, err)
	defer r.Close()
	for _, tt := range []struct {
		name string
		how  fsops.Lookup
		held bool
	}{
		{"d/e/f", 0, true},
		{"d/e/f", fsops.Unheld, false},
		{"d/e", fsops.Unheld | fsops.FollowLast, false},
		{"d/l", fsops.Unheld, false},
		{"d/l", fsops.Unheld | fsops.FollowLast, true},
		{"d/l/f", fsops.Unheld, false},
		{"d/e/", fsops.Unheld, true},
		{"d/missing", fsops.Unheld, true},
	} {
		p := rig.Value(r.Resolve(elsewhere{}, r.Base(), root+"/"+tt.name, tt.how))
		rig.Is(t, p.In.FD >= 0, tt.held, "%s, %v: the directory is held", tt.name, tt.how)
		p.Close()
	}
}

// describe returns the place as a row of TestResolver has it.
func describe(r *fsops.Resolver, p *fsops.Place, root string) string {
	name := func(err error) string {
		if err == nil {
			return "nil"
		}
		return unix.ErrnoName(err.(unix.Errno))
	}
	there, change := "", r.Creatable(p, false)
	if p.Exists() {
		there, change = " +", p.Writable()
	}
	if err := p.Access.Readable(); err != nil && change != err {
		return fmt.Sprintf("not readable (%v), but changed with %v", err, change)
	}
	return fmt.Sprintf("%s%s %s %s", strings.TrimPrefix(p.Path, root+"/"), there, name(change), name(r.Removable(p)))
}
