package procs

import (
	"maps"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper reaps the orphans that the kernel gives to the agent, if the agent is PID
// 1 or a child subreaper. All children of the agent must be forked through Fork,
// because a Reaper takes every other child for an orphan and reaps it. All methods
// may run concurrently. A nil Reaper reaps nothing.
//
// The agent becomes a child subreaper with the first [Stage] that has a Grace. Such
// a stage itself ends the processes it started. But it may be killed before that,
// or lack the descriptors for it. So after its end, the Reaper looks among the
// orphans for processes that it left.
type Reaper struct {
	// abandoned reports whether a stage should have ended an orphan; nil: the
	// Reaper looks for none.
	abandoned func(pid int) bool
	adopts    sync.Once
	// look says that a stage has ended and may have left processes.
	look atomic.Bool

	// fork is held for reading to fork and note a child, and for writing to look
	// and reap.
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

// NewReaper starts to reap. Close ends it. abandoned reports whether a stage with a
// Grace started the orphan with that pid, alive or not; all such orphans are
// killed.
func NewReaper(abandoned func(pid int) bool) *Reaper {
	r := &Reaper{
		abandoned: abandoned,
		managed:   map[int]int{},
		children:  make(chan os.Signal, 1),
		kicked:    make(chan struct{}, 1),
		done:      make(chan struct{}),
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

// Reaped notes that the caller has waited for the child pid.
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

// adopt makes orphans of this process's descendants its own children.
func (r *Reaper) adopt() {
	if r == nil || r.abandoned == nil {
		return
	}
	r.adopts.Do(func() {
		// Every kernel that has namespaces has this. It cannot fail.
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	})
}

// suspect makes the Reaper look for processes that a stage left. It is called
// once the stage has exited, and before Reaped, which starts the look.
func (r *Reaper) suspect() {
	if r != nil {
		r.look.Store(true)
	}
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
		look := r.look.Swap(false)
		for r.reapOne() {
			look = true // an orphan may have left others
		}
		if look {
			r.endAbandoned()
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

// endAbandoned kills abandoned orphans. Processes that these leave in turn are
// found when the orphans are reaped.
func (r *Reaper) endAbandoned() {
	if r.abandoned == nil {
		return
	}
	// Nothing is forked while this lock is held. A child that was waited for before the
	// copy is not listed after it, and only this goroutine reaps orphans. So no number
	// that is in the list but not in the copy can become the number of another process.
	r.fork.Lock()
	defer r.fork.Unlock()
	r.mu.Lock()
	managed := maps.Clone(r.managed)
	r.mu.Unlock()
	for _, pid := range Children() {
		if managed[pid] == 0 && r.abandoned(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// Children lists the children of all threads of this process, including children
// that have ended and are not reaped (proc_tid_children(5)).
func Children() (pids []int) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, thread := range threads {
		list, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/children")
		if err != nil {
			continue // it has ended
		}
		for number := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(number); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
