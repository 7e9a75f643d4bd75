package execcheck

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux/usernotify"
)

// window is the time in which one thread is traced. At most one is open for a
// process: to trace a thread takes a lock of its process that an execve of another
// thread holds while it waits for this one to be gone, and a traced thread is only
// gone once its tracer has waited for it.
type window struct {
	*Checker
	*job
	leader int  // the process of the calling thread
	child  bool // it is a child of this process
	want   expected
	closed chan struct{}
}

// open waits until no window is open for the process, and marks this one.
func (w *window) open() {
	w.closed = make(chan struct{})
	for {
		w.mu.Lock()
		before := w.windows[w.leader]
		if before == nil {
			w.windows[w.leader], w.windows[int(w.call.Thread)] = w.closed, w.closed
		}
		w.mu.Unlock()
		if before == nil {
			return
		}
		<-before
	}
}

// close removes the mark. It may be called again.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeLocked()
}

func (w *window) closeLocked() {
	select {
	case <-w.closed:
		return
	default:
	}
	close(w.closed)
	for _, pid := range []int{w.leader, int(w.call.Thread)} {
		// The number of a thread that became the leader may be in another window.
		if w.windows[pid] == w.closed {
			delete(w.windows, pid)
		}
	}
}

// run traces the thread around its call.
func (w *window) run() {
	tid := int(w.call.Thread)
	if !usernotify.Valid(w.listener, w.call.ID) {
		return // the thread is gone; its number may be another one's
	}
	if err := seize(tid); err != nil {
		// A debugger traces the thread, or it was made untraceable. Without a look
		// at the new image it may not run.
		w.refuse(unix.EPERM)
		return
	}
	if err := interrupt(tid); err == nil && usernotify.Valid(w.listener, w.call.ID) {
		// From here on every end of the call is a stop, and the first stop tells
		// which end it is. If this fails the thread has been killed, which is
		// waited for too.
		_ = usernotify.Continue(w.listener, w.call.ID)
	}
	for {
		s, err := traced()
		switch {
		case err != nil: // ECHILD: the execve of another thread has removed this one
			return
		case s.ended:
			w.ended(s.pid)
			return
		case w.stopped(s):
			return
		}
	}
}

// stopped lets a stopped thread go, or kills it. It returns false if the window
// has to wait for the end of the thread.
func (w *window) stopped(s sighting) (done bool) {
	switch s.event() {
	case unix.PTRACE_EVENT_EXEC:
		// A thread that was not the leader is stopped under the number of the
		// leader: it has become the process.
		if !w.right(s.pid) {
			// The thread must not be let go: it is only gone once it has ended.
			_ = unix.Kill(s.pid, unix.SIGKILL)
			return false
		}
		return detach(s.pid, 0) == nil
	case unix.PTRACE_EVENT_STOP:
		// The call has failed, and the program gets the kernel's own errno. Or the
		// kernel begins the call anew: then it comes to the listener once more.
		return detach(s.pid, 0) == nil
	}
	return detach(s.pid, s.signal()) == nil // a signal came first
}

// mayMap reports whether the process, which has these arguments, may have the files that are mapped
// into it beside its program. Before the kernel read that file it could have been changed to name
// another loader than the one that was judged, or the name to lead to another one.
func (w *window) mayMap(pid int, argv []string) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	paths, err := mapped(pid)
	if err != nil {
		return false
	}
	image := Image{Real: true, Argv: argv, Thread: pid, Process: pid, Parent: w.want.parent}
	for _, path := range paths {
		image.Program, image.Loader = path, path
		switch {
		case path == exe, path == w.want.loader:
		case strings.HasSuffix(path, " (deleted)"), w.config.Decide(image) != nil:
			return false // a file that no path leads to any more cannot be judged
		}
	}
	return true
}

// right reports whether the process may run what it has become.
func (w *window) right(pid int) bool {
	argv := w.want.argv
	if !w.want.is(pid) {
		image, err := realImage(pid, w.want.parent)
		if err != nil || !w.want.allows(image.Argv) || w.config.Decide(image) != nil {
			return false
		}
		argv = image.Argv
	}
	if !w.mayMap(pid, argv) {
		return false
	}
	right := true
	w.first.Do(func() { right = w.config.First == nil || w.config.First() == nil })
	return right
}

// ended takes the end of a traced thread. The end of a child of this process
// belongs to whoever waits for children: the worker waits until they have it, so
// that its next window does not see this end once more. An orphan that became a
// child while the window was open is not meant: nobody asks how that has ended.
func (w *window) ended(pid int) {
	if !w.child || pid != w.leader {
		release(pid)
		return
	}
	reaped := make(chan struct{})
	w.mu.Lock()
	w.reaped[pid] = reaped
	w.closeLocked()
	w.mu.Unlock()
	select {
	case <-reaped:
	case <-w.stop:
	}
}
