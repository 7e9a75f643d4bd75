package procs

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper reaps the orphans that the kernel hands to the agent, where the agent is
// PID 1 or a child subreaper. All children of the agent have to be forked through
// Fork: a Reaper takes the exit status of every other child for that of an orphan.
// All methods may run at once. A nil Reaper reaps nothing.
type Reaper struct {
	// fork is held for reading to fork and note a child, for writing to look and
	// reap.
	fork sync.RWMutex
	mu   sync.Mutex
	// managed has the pids of children from Fork, each with how many calls of
	// Reaped it waits for. There can be two: the kernel may give the pid of a
	// reaped child to another one before Reaped is called.
	managed map[int]int

	children chan os.Signal
	kicked   chan struct{} // capacity 1: a kick during a sweep asks for another
	done     chan struct{}
	running  sync.WaitGroup
	closed   sync.Once
}

// NewReaper starts to reap. Close ends it.
func NewReaper() *Reaper {
	r := &Reaper{
		managed:  map[int]int{},
		children: make(chan os.Signal, 1),
		kicked:   make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
	signal.Notify(r.children, syscall.SIGCHLD)
	r.kick() // there may be orphans from before
	r.running.Go(r.run)
	return r
}

// Fork runs start, which forks a child and returns its pid. The caller waits
// for the child and then calls Reaped.
func (r *Reaper) Fork(start func() (pid int, err error)) (pid int, err error) {
	if r == nil {
		return start()
	}
	r.fork.RLock()
	defer r.fork.RUnlock()
	if pid, err = start(); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.managed[pid]++
	return pid, nil
}

// Reaped says that the caller has waited for the child pid.
func (r *Reaper) Reaped(pid int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	if r.managed[pid]--; r.managed[pid] == 0 {
		delete(r.managed, pid)
	}
	r.mu.Unlock()
	r.kick() // the zombie may have hidden orphans from reapOne
}

// Close stops reaping.
func (r *Reaper) Close() {
	if r == nil {
		return
	}
	r.closed.Do(func() {
		signal.Stop(r.children)
		close(r.done)
	})
	r.running.Wait()
}

func (r *Reaper) kick() {
	select {
	case r.kicked <- struct{}{}:
	default:
	}
}

func (r *Reaper) run() {
	for {
		select {
		case <-r.children:
		case <-r.kicked:
		case <-r.done:
			return
		}
		for r.reapOne() {
		}
	}
}

// reapOne reaps the first child that has exited, unless that child is managed:
// then its waiter reaps it and kicks. It reports whether to go on.
func (r *Reaper) reapOne() bool {
	r.fork.Lock()
	defer r.fork.Unlock()
	pid, ok, _ := peek(unix.P_ALL, 0) // ECHILD: no children at all
	if !ok {
		return false
	}
	r.mu.Lock()
	managed := r.managed[pid] > 0
	r.mu.Unlock()
	if managed {
		return false
	}
	_, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return err == nil || err == syscall.EINTR
}
