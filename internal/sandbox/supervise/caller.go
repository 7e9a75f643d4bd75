package supervise

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
)

// A worker remembers three things about threads that have made calls. First, the
// thread's directory in procfs, because looking into it is cheaper than finding
// it. It always belongs to that thread: once the thread has ended, nothing is
// found in it, even if another thread has its number. Second, its umask, because
// reading it costs more than making a file. Third, its working directory, which is
// checked again each time, because nothing announces a change.

// maxCallers bounds the threads that a worker remembers; each takes a descriptor.
const maxCallers = 64

// caller is a thread that has made a call.
type caller struct {
	dir     int    // its directory in procfs, O_PATH
	cwd     origin // its working directory; no path: unknown
	process int    // 0: unknown
	umask   int    // -1: unknown
	since   uint64 // the number of changes of umasks that were known with it
}

// callers are the callers that one worker remembers, by thread number. nil
// remembers none.
type callers map[int]*caller

// newCallers returns the initial callers of a worker. If only connect(2) and
// bind(2) come here, there are too few calls to remember anything.
func (n *Notifier) newCallers() callers {
	if n.config.Level == sandbox.NoLevel {
		return nil
	}
	return callers{}
}

// forget forgets a thread.
func (r *request) forget(thread int) {
	if known := r.callers[thread]; known != nil {
		unix.Close(known.dir)
		r.leave(known)
		delete(r.callers, thread)
	}
}

// forgetAll forgets all threads.
func (r *request) forgetAll() {
	for thread := range r.callers {
		r.forget(thread)
	}
	r.rest()
}

// leave forgets the working directory of a thread. The current call may still use
// it.
func (r *request) leave(c *caller) {
	if c.cwd.text != "" {
		r.left = append(r.left, c.cwd.own)
		c.cwd = origin{}
	}
}

// rest is called between two calls.
func (r *request) rest() {
	for _, fd := range r.left {
		unix.Close(fd)
	}
	r.left, r.met = r.left[:0], false
}

// knownCwd returns the remembered working directory of the caller, if it is still
// the same object with the same path. That takes half as long as opening and
// judging the directory.
func (r *request) knownCwd() (d fsops.Dir, ok bool) {
	known := r.caller()
	if known == nil {
		return d, false
	}
	if known.cwd.text != "" && r.isCwd(known) {
		return known.cwd.Dir, true
	}
	r.leave(known)
	own, err := r.cwd()
	if err != nil {
		return d, false
	}
	found, err := r.n.origin(own)
	if known = r.callers[r.thread()]; err != nil || known == nil {
		unix.Close(own)
		return d, false
	}
	known.cwd = found
	return found.Dir, true
}

// isCwd reports whether the thread is in the remembered directory.
func (r *request) isCwd(c *caller) bool {
	var st unix.Stat_t
	if err := unix.Fstatat(c.dir, "cwd", &st, 0); err != nil || st.Dev != c.cwd.stat.Dev || st.Ino != c.cwd.stat.Ino {
		return false
	}
	r.met = true
	var text [unix.PathMax]byte
	n, err := unix.Readlinkat(c.dir, "cwd", text[:])
	return err == nil && string(text[:n]) == c.cwd.text
}

// caller returns the remembered facts about the calling thread. Without callers
// it returns nil.
func (r *request) caller() *caller {
	if r.callers == nil {
		return nil
	}
	if known := r.callers[r.thread()]; known != nil {
		return known
	}
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", r.thread()), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if len(r.callers) >= maxCallers {
		for other := range r.callers { // any one
			r.forget(other)
			break
		}
	}
	known := &caller{dir: dir, umask: -1}
	r.callers[r.thread()] = known
	return known
}

// ofCaller opens a name in the caller's directory in procfs.
func (r *request) ofCaller(name string, flags int) (int, error) {
	if known := r.caller(); known != nil {
		fd, err := unix.Openat(known.dir, name, flags|unix.O_CLOEXEC, 0)
		if err != unix.ENOENT && err != unix.ESRCH {
			r.met = r.met || err == nil
			return fd, err
		}
		// The number belongs to another thread now, or there is no such name.
		r.forget(r.thread())
	}
	return unix.Open(fmt.Sprintf("/proc/%d/%s", r.thread(), name), flags|unix.O_CLOEXEC, 0)
}

// isStill reports whether a remembered thread is still the caller: only the contents
// of its directory show that.
func (r *request) isStill(known *caller) bool {
	r.met = r.met || unix.Faccessat(known.dir, "status", unix.F_OK, 0) == nil
	return r.met
}

// umasks knows the threads that are about to change an umask. The kernel makes that
// change, after the supervisor has let the call continue. Threads may share an
// umask, so no worker remembers an umask until the change is certainly made.
type umasks struct {
	mu      sync.Mutex
	changes uint64
	pending map[int]int // the procfs directory of each thread that is about to change its umask
}

// setUmask lets the kernel make a call of umask(2).
func (r *request) setUmask() callResult {
	u := &r.n.umasks
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", r.thread()), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	u.mu.Lock()
	u.changes++
	if err == nil && u.pending[r.thread()] == 0 && len(u.pending) < maxCallers {
		u.pending[r.thread()] = dir
		dir = -1
	}
	u.mu.Unlock()
	if err == nil && dir >= 0 {
		unix.Close(dir)
	}
	return proceed()
}

// settled reports whether no change is under way, and returns the number of
// changes so far. A thread that makes another call, or has ended, has made its
// change.
func (u *umasks) settled(thread int) (changes uint64, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for other, dir := range u.pending {
		if other == thread || unix.Faccessat(dir, "status", unix.F_OK, 0) != nil {
			unix.Close(dir)
			delete(u.pending, other)
		}
	}
	return u.changes, len(u.pending) == 0
}

// umask returns the caller's umask, or errGone.
func (r *request) umask() (int, error) {
	changes, settled := r.n.umasks.settled(r.thread())
	known := r.caller()
	if settled && known != nil && known.umask >= 0 && known.since == changes && r.isStill(known) {
		return known.umask, nil
	}
	mask, err := r.readUmask()
	if err = r.there(err); err != nil {
		return 0, err
	}
	if known = r.caller(); settled && known != nil {
		known.umask, known.since = mask, changes
	}
	return mask, nil
}

// readUmask reads the caller's umask, proc_pid_status(5).
func (r *request) readUmask() (int, error) {
	fd, err := r.ofCaller("status", unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 512) // the umask is in the second line
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(buf[:n]), "\nUmask:\t")
	octal, _, ended := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(octal, 8, 12)
	if !found || !ended || err != nil {
		return 0, unix.ESRCH
	}
	return int(mask), nil
}
