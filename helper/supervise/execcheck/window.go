package execcheck

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/thread"
	"github.com/execagent/execagent/internal/usernotify"
)

// window is the time in which one thread is traced. At most one is open for a
// process: to trace a thread takes a lock of its process that an execve of another
// thread holds while it waits for this one to be gone, and a traced thread is only
// gone once its tracer has waited for it.
type window struct {
	*Checker
	*job
	leader int // the process of the calling thread
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

// close removes the mark.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.windows[w.leader] == w.closed {
		delete(w.windows, w.leader)
	}
	delete(w.windows, int(w.call.Thread))
	select {
	case <-w.closed: // ended has closed it
	default:
		close(w.closed)
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
		pid, ended, err := peek()
		if err != nil { // ECHILD: the execve of another thread has removed this one
			return
		}
		if ended {
			w.ended(pid)
			return
		}
		status, err := take(pid)
		if err != nil {
			return
		}
		if w.stopped(pid, status) {
			return
		}
	}
}

// stopped lets a stopped thread go, or kills it. It returns false if the window
// has to wait for one more event.
func (w *window) stopped(pid int, status unix.WaitStatus) (done bool) {
	switch event := int(status>>16) & 0xffff; event {
	case eventExec:
		if !w.right(pid) {
			// The thread must not be let go: it is only gone once it has ended.
			_ = unix.Kill(pid, unix.SIGKILL)
			return false
		}
		return detach(pid, 0) == nil
	case eventStop:
		// The call has failed, and the program gets the kernel's own errno.
		return detach(pid, 0) == nil
	}
	return detach(pid, status.StopSignal()) == nil // a signal came first
}

// right tells whether the process may run what it has become.
func (w *window) right(pid int) bool {
	if !w.want.is(pid) {
		image, err := realImage(pid)
		if err != nil || w.config.Decide(image) != nil {
			return false
		}
	}
	right := true
	w.first.Do(func() { right = w.config.First == nil || w.config.First() == nil })
	return right
}

// ended takes the end of a traced thread. If it was a child of this process its
// status belongs to whoever waits for children; the worker waits until they have
// it, so that its next window does not see this end once more.
func (w *window) ended(pid int) {
	parent, err := thread.Status(pid, "PPid", 10)
	if err != nil || parent != os.Getpid() {
		_, _ = take(pid) // the parent of the thread learns of the end now
		return
	}
	reaped := make(chan struct{})
	w.mu.Lock()
	w.reaped[pid] = reaped
	close(w.closed)
	delete(w.windows, w.leader)
	delete(w.windows, int(w.call.Thread))
	w.mu.Unlock()
	select {
	case <-reaped:
	case <-w.stop:
	}
}
