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

	"github.com/execagent/execagent/internal/thread"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/resolve"
	"github.com/execagent/execagent/sandbox/view"
)

// What hides or protects a path in the view is a mount on the object there.
// The command can neither take it off nor move the object. Somebody outside
// can: the kernel detaches a mount, in whichever namespace, when the object
// below it is removed or replaced (since Linux 3.18), and lets it go along when
// the object is renamed. The path is bare then, so the command is ended.

// maxMountInfo bounds the list of mounts, in bytes.
const maxMountInfo = 64 << 20

// mountWatch looks after the mounts that a view depends on.
type mountWatch struct {
	self    int // /proc/self of before, as the view may have none
	renames int // readable after what may have been a rename

	list   *os.File          // the mounts of this namespace
	mounts map[uint64]string // where those of the view are, by their ids
	// tops has the mount on top at each path when the view was new, 0 where that
	// could not be looked at: intact is false then, and check reads the list.
	tops map[string]uint64
}

// newMountWatch is called before the view is built. It is nil without one.
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
	return w, nil
}

// mountAt is the id of the mount that path is on, statx(2).
func mountAt(path string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, os.NewSyscallError("statx", err) // view.Enter fails where it is not known
}

// carvedPaths are those that exist and are shown in another way than what is
// around them. A view has its own /dev and /proc, and /sys is the kernel's; what
// is granted of /dev/shm is the host's.
func carvedPaths(resolved *resolve.Resolved) map[string]bool {
	carved := map[string]bool{}
	add := func(path string, access sandbox.Access) {
		for _, own := range []string{"/dev/", "/proc/", "/sys/"} {
			if strings.HasPrefix(path+"/", own) && !strings.HasPrefix(path, "/dev/shm/") {
				return
			}
		}
		var st unix.Stat_t
		if path != "/" && resolved.Policy.Access(filepath.Dir(path)) != access && unix.Lstat(path, &st) == nil {
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

// record is told which mounts the view depends on, once it is there, and fails
// if one of them is gone already: nothing may rely on the view before.
func (w *mountWatch) record(made []view.Mounted) error {
	if w == nil {
		return nil
	}
	defer unix.Close(w.self)
	w.mounts, w.tops = map[uint64]string{}, map[string]uint64{}
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
			w.tops[m.Path] = 0 // it is never intact: the list says more
		}
	}
	return w.check()
}

// check fails if one of the mounts is not where it was.
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

// begin has s end the command when one of the mounts is gone.
func (w *mountWatch) begin(s *supervisor) error {
	if w == nil || w.list == nil { // a second init could not build the view, and has said why
		return nil
	}
	var stderr unix.Stat_t
	if err := unix.Fstat(2, &stderr); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	go func() { s.lose(w.wait(), &stderr) }()
	return nil
}

func replaced(path string) error {
	return fmt.Errorf("%s was replaced by somebody outside; the command was ended", path)
}

// wait returns why the view is not any more what it was.
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
		// What the events say does not matter.
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

// intact tells whether no mount has gone along with a rename, for less than it
// takes to read the list: it may be asked often.
func (w *mountWatch) intact() bool {
	for path, top := range w.tops {
		if id, err := mountAt(path); err != nil || id != top {
			return false
		}
	}
	return true
}

// read returns where all mounts are, by their ids; proc_pid_mountinfo(5).
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

// unescape takes back what the kernel writes for blanks and backslashes.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(path)
}

// tellWithin bounds how long a slow reader of the command's stderr can hold up the end of init.
const tellWithin = 100 * time.Millisecond

// loss is the end of a command whose view is not any more what it was.
type loss struct {
	reason error
	stderr int // the command's, -1 none
}

// lose ends everything for that reason. Init holds no stderr: it says why on the
// command's, if that is still the one that it was given.
func (s *supervisor) lose(reason error, given *unix.Stat_t) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.lost = &loss{reason: reason, stderr: -1}
	if fd, err := thread.Duplicate(s.pid, 2); err == nil {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Dev == given.Dev && st.Ino == given.Ino {
			s.lost.stderr = fd
		}
	}
	if s.pidNS {
		_ = unix.Kill(-1, unix.SIGKILL) // everybody but init; then attend returns
	} else {
		_ = unix.Kill(s.pid, unix.SIGKILL) // and attend kills the others
	}
}

// tell says why the command was ended, and returns its exit code.
func (l *loss) tell() (code int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = unix.Write(l.stderr, []byte("sandbox: "+l.reason.Error()+"\n")) // the code says it too
	}()
	select {
	case <-done:
	case <-time.After(tellWithin):
	}
	return setupFailed
}
