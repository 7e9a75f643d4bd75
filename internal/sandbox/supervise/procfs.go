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

// reading is a request as [fsops.Reading]: what it finds in procfs is what the
// caller would find there, and the processes in it are those of the command.
//
//   - "self" and "thread-self" lead to the caller.
//   - A process that does not descend from this one does not exist.
//   - A magic link leads to an object, which is judged by its own path.
//   - Only what a process may set about itself is written; nothing else on a file
//     system of the kernel is.
//   - Where reads are judged, what tells of the kernel's memory, keys and log is
//     denied; so is the network, if the command has none.
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

// secrets are the names in the root of a procfs that are denied where reads are
// judged.
var secrets = sandbox.ProcfsSecrets()

// isSecret tells whether path, in procfs, is denied. A directory that holds it may
// be the caller's working directory, so what matters is the whole path.
func (r *reading) isSecret(path string) bool {
	if r.n.config.Level < sandbox.LevelReads {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(path, proc+"/"), "/")
	switch {
	case slices.Contains(secrets, name):
		return true
	case name == "net" || name == "sys" || r.n.config.Policy.Network == sandbox.NetworkEnabled:
		return false // the link /proc/net leads to one of the next
	}
	return strings.Contains(path+"/", "/net/")
}

// Object says what may be done with p.
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

// belongs tells why p may not be looked at, or nil: ENOENT for what is of a
// process of somebody else. What was found in the directory of a process is of
// that process, and about that directory somebody has asked: this method, where a
// walk came by, or [Notifier.origin], where it began.
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

// isOfOthers tells whether a path in procfs is about a process outside.
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

// settings are the files of a process that say something about the process only,
// and that it may write itself.
var settings = []string{"comm", "oom_score_adj", "oom_adj", "coredump_filter", "timerslack_ns", "clear_refs"}

// isOwnSetting tells whether p is such a file of the calling process.
func (r *reading) isOwnSetting(p *fsops.Place) bool {
	id, rest := processOf(p.Path)
	if id == 0 || p.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	if _, after, ok := strings.Cut(rest, "/"); ok && strings.HasPrefix(rest, "task/") {
		_, rest, _ = strings.Cut(after, "/")
	}
	if !slices.Contains(settings, rest) {
		return false
	}
	own, err := (*request)(r).process()
	return err == nil && id == own
}

// process returns the process of the caller.
func (r *request) process() (int, error) {
	// A thread stays one of its process.
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
// process; here it is opened, and whether the caller may have that object depends
// on the object's own path.
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
	if found.FD != fd { // the private directory in the place of the host's
		unix.Close(fd)
		if found.FD, err = unix.FcntlInt(uintptr(found.FD), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return "", object, err
		}
	}
	return "", found, nil
}

// linkText returns the text of a link as the caller is to see it.
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

// isMagic tells whether a link at path in procfs leads to an object, and not where
// its text says; proc(5).
func isMagic(path string) bool {
	_, rest := processOf(path)
	if after, ok := strings.CutPrefix(rest, "task/"); ok {
		_, rest, _ = strings.Cut(after, "/")
	}
	name, below, ok := strings.Cut(rest, "/")
	if !ok {
		return name == "cwd" || name == "root" || name == "exe"
	}
	return below != "" && (name == "fd" || name == "map_files" || name == "ns")
}
