package supervise

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/sandbox"
)

// reading is a request as [fsops.Reading]: in procfs it finds the objects that
// the caller would find, and only the processes of the command.
//
//   - "self" and "thread-self" lead to the caller.
//   - A process that does not descend from this process does not exist.
//   - A magic link leads to an object, which is judged by its own path.
//   - Only the settings of a process for itself may be written, and nothing else
//     on a file system of the kernel.
//   - If reads are judged, files about the kernel's memory, keys and log are
//     denied; so are files about the network, if the command has no network.
//
// A procfs that is mounted elsewhere is denied: it may show other processes.
type reading request

const proc = "/proc"

// Name refuses names that no command may look up.
func (r *reading) Name(_ fsops.Lookup, d fsops.Dir, name string) error {
	switch {
	case d.Kind != fsops.Procfs:
		return nil
	case !within(d.Path, proc):
		return unix.EACCES
	case r.isSecret(d.Path + "/" + name):
		return unix.EACCES
	}
	return nil
}

// secrets are the names in the root of a procfs that are denied if reads are
// judged.
var secrets = sandbox.ProcfsSecrets()

// isSecret reports whether path, in procfs, is denied. It checks the whole path,
// because a directory above it may be the caller's working directory.
func (r *reading) isSecret(path string) bool {
	if r.n.config.Level < sandbox.LevelReads {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(path, proc+"/"), "/")
	if slices.Contains(secrets, name) {
		return true
	}
	_, rest := fileOf(path) // the link /proc/net leads to such a directory
	return r.n.config.Policy.Network != sandbox.NetworkEnabled && within(rest, "net")
}

// Object returns p with its access.
func (r *reading) Object(_ fsops.Lookup, d fsops.Dir, p fsops.Place) (fsops.Place, error) {
	switch {
	case p.Path == devShm && r.n.shm.inUse():
		return r.n.shm.enter(p)
	case p.Kind == fsops.Ordinary:
		return p, nil
	case p.Kind == fsops.Procfs && !within(p.Path, proc):
		p.Access = min(p.Access, fsops.Denied)
		return p, nil
	}
	if p.Kind == fsops.Procfs {
		if err := r.belongs(d, &p); err != nil {
			return p, err
		}
		if r.isSecret(p.Path) {
			p.Access = min(p.Access, fsops.Denied)
		}
		if r.isOwnSetting(&p) && p.Access == fsops.Read {
			p.Access, p.Kind = fsops.Write, fsops.Ordinary
			return p, nil
		}
	}
	p.Access = min(p.Access, fsops.Read)
	return p, nil
}

// belongs returns the reason why p may not be looked at, or nil: ENOENT if p
// belongs to an outside process. An object in the directory of a process belongs
// to that process. The directory itself was already judged: by this method if a
// walk passed it, or by [Notifier.origin] if the walk began there.
func (r *reading) belongs(d fsops.Dir, p *fsops.Place) error {
	id, below := processOf(p.Path)
	if id == 0 || below != "" && d.FD >= 0 || id == (*request)(r).thread() {
		return nil
	}
	if own, err := (*request)(r).process(); err == nil && id == own || isOfCommand(id) {
		return nil
	}
	return unix.ENOENT
}

// isOfOthers reports whether a path in procfs is about an outside process.
func isOfOthers(path string) bool {
	id, _ := processOf(path)
	return id != 0 && !isOfCommand(id)
}

// processOf returns the process or thread that a path in procfs is about, 0 if it
// is about none, and the rest of the path.
func processOf(path string) (id int, rest string) {
	name, ok := strings.CutPrefix(path, proc+"/")
	if !ok {
		return 0, ""
	}
	name, rest, _ = strings.Cut(name, "/")
	id, err := strconv.Atoi(name)
	if err != nil || id <= 0 {
		return 0, ""
	}
	return id, rest
}

// fileOf is processOf, except that rest is relative to a thread if the path leads
// through the directory of one.
func fileOf(path string) (id int, rest string) {
	id, rest = processOf(path)
	if after, ok := strings.CutPrefix(rest, "task/"); ok {
		_, rest, _ = strings.Cut(after, "/")
	}
	return id, rest
}

// settings are the files about a process alone that it may itself write.
var settings = []string{"comm", "oom_score_adj", "oom_adj", "coredump_filter", "timerslack_ns", "clear_refs"}

// isOwnSetting reports whether p is such a file of the calling process.
func (r *reading) isOwnSetting(p *fsops.Place) bool {
	id, rest := fileOf(p.Path)
	if id == 0 || p.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	if !slices.Contains(settings, rest) {
		return false
	}
	own, err := (*request)(r).process()
	return err == nil && id == own
}

// process returns the process of the caller.
func (r *request) process() (int, error) {
	// A thread never changes its process.
	known := r.caller()
	if known != nil && known.process != 0 && r.isStill(known) {
		return known.process, nil
	}
	pid, err := linux.ThreadStatus(r.thread(), "Tgid", 10)
	if err = r.there(err); err != nil {
		return 0, err
	}
	if known != nil && r.isStill(known) {
		known.process = pid
	}
	return pid, nil
}

// Follow follows a link of procfs. A magic link leads to an object of another
// process; here it is opened, and the object's own path decides whether the
// caller may have it.
func (r *reading) Follow(d fsops.Dir, link fsops.Place) (text string, object fsops.Dir, err error) {
	object.FD = -1
	if !isMagic(link.Path) {
		text, err = (*request)(r).linkText(link)
		return text, object, err
	}
	if d.FD < 0 || d.Kind != fsops.Procfs {
		return "", object, unix.EACCES
	}
	fd, err := unix.Openat(d.FD, link.Name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", object, err
	}
	o, err := r.n.origin(fd)
	if err != nil {
		unix.Close(fd)
		return "", object, err
	}
	found := o.Dir
	if found.FD != fd { // the private directory instead of the host's
		unix.Close(fd)
		if found.FD, err = unix.FcntlInt(uintptr(found.FD), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return "", object, err
		}
	}
	return "", found, nil
}

// linkText returns the text of a link for the caller.
func (r *request) linkText(link fsops.Place) (string, error) {
	if link.Kind == fsops.Procfs && (link.Path == proc+"/self" || link.Path == proc+"/thread-self") {
		pid, err := r.process()
		if err != nil {
			return "", err
		}
		if link.Path == proc+"/self" {
			return strconv.Itoa(pid), nil
		}
		return fmt.Sprintf("%d/task/%d", pid, r.thread()), nil
	}
	var text [unix.PathMax]byte
	n, err := unix.Readlinkat(link.FD, "", text[:])
	if err != nil {
		return "", err
	}
	return string(text[:n]), nil
}

// isMagic reports whether a link at path in procfs leads directly to an object
// instead of following its text; proc(5).
func isMagic(path string) bool {
	_, rest := fileOf(path)
	name, below, ok := strings.Cut(rest, "/")
	if !ok {
		return name == "cwd" || name == "root" || name == "exe"
	}
	return below != "" && (name == "fd" || name == "map_files" || name == "ns")
}
