package confine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/sandbox"
)

// A mount on the object at a path hides or protects that path in the view. The
// command can neither take the mount off nor move the object. But a process
// outside of the view can, even without meaning to. When it removes or replaces
// the object, the kernel detaches the mounts on it in all namespaces (since
// Linux 3.18). When it renames the object, the mount moves along. In both cases
// nothing hides or protects the path any more, so the command is ended, unless
// the policy says that the object is replaceable.

// maxMountInfo bounds the list of mounts, in bytes.
const maxMountInfo = 64 << 20

// mountWatch looks after the mounts that a view depends on.
type mountWatch struct {
	self    int // /proc/self, opened before the view is built, which may have no /proc
	renames int // becomes readable when something may have been renamed

	list   *os.File          // mountinfo: all mounts of this namespace
	mounts map[uint64]string // the path of each mount that the view depends on, by its id
	// tops has the id of the topmost mount at each of these paths when the view
	// was new. It is 0 at a path whose topmost mount was another one or
	// unknown: then intact always returns false, and check reads the list.
	tops map[string]uint64
	// protected are the paths of the policy at which no command may make or change anything.
	protected []string
	begun     unix.Timespec // when the view was new, by the clock of file times
}

// newMountWatch is called before the view is built. If the backend has no views
// it returns nil, whose methods record and begin do nothing.
func newMountWatch(l sandbox.Backend, resolved *resolve.Resolved) (w *mountWatch, err error) {
	if !l.Has(sandbox.MountNS) {
		return nil, nil
	}
	w = &mountWatch{}
	if w.self, err = unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("watching the mounts: %w", &os.PathError{Op: "open", Path: "/proc/self", Err: err})
	}
	if w.renames, err = watchRenames(carvedPaths(resolved)); err != nil {
		return nil, err
	}
	for _, rule := range resolved.Policy.Rules {
		if rule.Origin == sandbox.Protected {
			w.protected = append(w.protected, rule.Path)
		}
	}
	return w, nil
}

// mountAt returns the id of the mount that path is on, statx(2).
func mountAt(path string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, os.NewSyscallError("statx", err) // where the kernel tells no id view.Enter fails
}

// carvedPaths returns the paths of the policy that exist and have another
// access than their directory: there is a mount on them. It leaves out what is
// below /dev, /proc and /sys. The first two are the view's own, and nobody can
// rename anything in the third. Paths below /dev/shm belong to the host, and
// count. It leaves out what may be replaced, too.
func carvedPaths(resolved *resolve.Resolved) map[string]bool {
	carved := map[string]bool{}
	add := func(path string, access sandbox.Access) {
		for _, own := range []string{"/dev/", "/proc/", "/sys/"} {
			if strings.HasPrefix(path+"/", own) && !strings.HasPrefix(path, "/dev/shm/") {
				return
			}
		}
		var st unix.Stat_t
		if path != "/" && resolved.Policy.Access(filepath.Dir(path)) != access && !resolved.Policy.Replaceable(path) && unix.Lstat(path, &st) == nil {
			carved[path] = true
		}
	}
	for _, rule := range resolved.Policy.Rules {
		add(rule.Path, rule.Access)
	}
	for _, m := range resolved.Missing {
		if !m.Barred {
			add(filepath.Join(m.Parent, m.Name), sandbox.Read)
		}
	}
	return carved
}

// record notes made, the mounts that the view depends on. It is called once the
// view has been built, and before the command is started in it. It fails if one
// of the mounts is gone already.
func (w *mountWatch) record(made []view.Mounted) error {
	if w == nil {
		return nil
	}
	defer unix.Close(w.self)
	w.mounts, w.tops = map[uint64]string{}, map[string]uint64{}
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &w.begun); err != nil {
		return fmt.Errorf("watching the mounts: %w", os.NewSyscallError("clock_gettime", err))
	}
	fd, err := unix.Openat(w.self, "mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watching the mounts: %w", &os.PathError{Op: "open", Path: "/proc/self/mountinfo", Err: err})
	}
	w.list = os.NewFile(uintptr(fd), "mountinfo")
	for _, m := range made {
		w.mounts[m.ID] = m.Path
		if id, err := mountAt(m.Path); err == nil && id == m.ID {
			w.tops[m.Path] = id
		} else {
			w.tops[m.Path] = 0
		}
	}
	return w.check()
}

// check reads the list of mounts, and fails if one that the view depends on is
// not where it was.
func (w *mountWatch) check() error {
	all, err := w.read()
	if err != nil {
		return fmt.Errorf("watching the mounts: %w", err)
	}
	for id, path := range w.mounts {
		if all[id] != path {
			return replaced(path)
		}
	}
	return nil
}

// begin starts a goroutine that waits, and then makes s end the command. It is
// called while init still has the stderr that it was given.
func (w *mountWatch) begin(s *supervisor) error {
	if w == nil || w.list == nil { // a second init could not build the view, and has printed the reason
		return nil
	}
	var stderr unix.Stat_t
	if err := unix.Fstat(2, &stderr); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	go func() { s.lose(w.wait(), &stderr, w) }()
	return nil
}

// aftermath returns what else the user has to know once a command has been ended because a mount
// was gone: at which protected paths there is something of this user that is newer than the view.
// In the moment before its end, the command may have made it, to be trusted by those who use the
// path later.
func (w *mountWatch) aftermath() string {
	var made []string
	for _, path := range w.protected {
		var st unix.Stat_t
		if id, err := mountAt(path); err != nil || w.mounts[id] == path {
			continue // the mount is still there
		}
		switch err := unix.Lstat(path, &st); {
		case err != nil, int(st.Uid) != os.Getuid(), placeholder.IsPlaceholder(&st):
		case st.Nlink == 0: // the kernel is about to take away what was there
		case st.Ctim.Nano() >= w.begun.Nano():
			made = append(made, path)
		}
	}
	if len(made) == 0 {
		return ""
	}
	return ". Since the command began, " + strings.Join(made, " and ") + " was created, perhaps by the command: check it before you use it"
}

// replaced returns the error for a path whose mount is gone.
func replaced(path string) error {
	return fmt.Errorf("%s was replaced by somebody outside; the command was ended", path)
}

// wait returns the reason once the view has changed.
func (w *mountWatch) wait() error {
	events := []unix.PollFd{
		{Fd: int32(w.list.Fd()), Events: unix.POLLPRI},
		{Fd: int32(w.renames), Events: unix.POLLIN},
	}
	buf := make([]byte, 4<<10)
	for {
		if _, err := unix.Poll(events, -1); err != nil && err != unix.EINTR {
			return fmt.Errorf("watching the mounts: %w", os.NewSyscallError("poll", err))
		}
		// The events are read only so that the next poll waits for new ones.
		for n := 1; n > 0; {
			n, _ = unix.Read(w.renames, buf)
		}
		if events[0].Revents == 0 && w.intact() {
			continue
		}
		if err := w.check(); err != nil {
			return err
		}
	}
}

// intact reports whether each mount is still at its path, and has not moved
// along with a rename. It is called after every possible rename, and costs less
// than check, which reads the whole list.
func (w *mountWatch) intact() bool {
	for path, top := range w.tops {
		if id, err := mountAt(path); err != nil || id != top {
			return false
		}
	}
	return true
}

// read returns the paths of all mounts, by their ids; proc_pid_mountinfo(5).
func (w *mountWatch) read() (map[uint64]string, error) {
	if _, err := w.list.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(w.list, maxMountInfo))
	if err != nil {
		return nil, err
	}
	all := map[uint64]string{}
	for line := range bytes.Lines(text) {
		fields := bytes.SplitN(line, []byte(" "), 6)
		if len(fields) < 6 {
			return nil, errors.New("reading the list of mounts: a line is incomplete")
		}
		id, err := strconv.ParseUint(string(fields[0]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the list of mounts: %w", err)
		}
		all[id] = unescape(string(fields[4]))
	}
	return all, nil
}

// unescape turns the escapes for blanks, backslashes and "#" into these
// characters.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(path)
}

// tellWithin bounds how long a slow reader of the command's stderr can delay
// the end of init.
const tellWithin = 100 * time.Millisecond

// loss is the reason why a command whose view has changed is ended.
type loss struct {
	reason error
	stderr int         // a duplicate of the command's, for the reason; -1: the reason is not written
	watch  *mountWatch // nil: another reason than a mount
}

// lose ends the command, with all its processes, for that reason. Init no
// longer has its stderr open, so the reason will be written to the command's
// stderr. The command may have opened another file there, which init must not
// write to. So the reason is written only if the file is still the one that
// init was given.
func (s *supervisor) lose(reason error, given *unix.Stat_t, w *mountWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.lost = &loss{reason: reason, stderr: linux.DuplicateOutput(s.pid, given, judge.ErrorFDs[:]...), watch: w}
	if s.pidNS {
		_ = unix.Kill(-1, unix.SIGKILL) // every process except init; then attend returns
	} else {
		_ = unix.Kill(s.pid, unix.SIGKILL) // and attend kills the others
	}
}

// tell writes why the command was ended, and returns the exit code of init.
func (l *loss) tell() (code int) {
	text := "sandbox: " + l.reason.Error()
	if l.watch != nil {
		text += l.watch.aftermath()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = unix.Write(l.stderr, []byte(text+"\n")) // the code says it too
	}()
	select {
	case <-done:
	case <-time.After(tellWithin):
	}
	return setupFailed
}
