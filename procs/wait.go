package procs

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait waits for the exit of the leader, reaps it and delivers the remaining
// events.
func (p *Process) wait() {
	p.group.await()
	// The time is taken before the leader is reaped: until then its number
	// cannot be given to another process.
	known := ticks()
	p.guard.orphan(p.slot, known)
	if p.leash.lingers() {
		p.group.reaper.suspect()
	}
	code := p.group.reap(known)
	p.outcome.CompareAndSwap(undecided, inTime)
	p.exited.Store(true)
	p.leash.end()
	if p.stdin != nil {
		p.stdin.end()
	}
	// Only the events wait for Begin, not the reaping, because a Reaper sees no
	// other zombie as long as this one comes first.
	<-p.begun
	for _, s := range p.streams {
		p.drain(s)
		s.mu.Lock()
		p.deliverRestLocked(s)
		s.mu.Unlock()
	}
	if p.last != nil && !p.closing.Load() {
		if text := p.last(code); len(text) > 0 {
			p.emit(Event{Kind: Output, Stream: p.errors(), Data: text[:min(len(text), chunkSize)]})
		}
	}
	p.emit(Event{Kind: Exited, ExitCode: code, Ending: Ending{TimedOut: p.outcome.Load() == tooLate, OutOfMemory: p.cgroup.ranOut()}})
	p.endPart()
}

// errors is the stream for messages.
func (p *Process) errors() Stream {
	if p.tty {
		return PTY
	}
	return Stderr
}

// await returns when the leader has exited. It does not reap it.
func (g *group) await() {
	// This uses g.pidfd without the mutex. The file is closed only after the
	// leader was reaped, which this goroutine does later.
	if g.pidfd != nil {
		raw, err := g.pidfd.SyscallConn()
		if err == nil && raw.Read(func(uintptr) bool { return exited(g.pid) }) == nil {
			return
		}
		// The pidfd cannot be polled, as in gVisor: wait with a thread.
	}
	for unix.Waitid(unix.P_PID, g.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// reap takes the exit status of the leader, which has exited. It returns its
// code, or 128+n after signal n, or -1 if another part of the program took the
// status. known is the time now, in ticks.
func (g *group) reap(known uint64) int {
	code := -1
	g.mu.Lock()
	var status syscall.WaitStatus
	for {
		pid, err := syscall.Wait4(g.pid, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid == g.pid {
			code = status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
		}
		break
	}
	g.reaped, g.known = true, known
	g.mu.Unlock()
	g.reaper.Reaped(g.pid)
	return code
}

// exited reports whether the child pid has exited, without reaping it.
func exited(pid int) bool {
	_, ok, err := peek(unix.P_PID, pid)
	return ok || err == unix.ECHILD
}

// peek looks for an exited child, without reaping it.
func peek(idType, id int) (pid int, ok bool, err error) {
	// The head of siginfo_t as waitid(2) fills it in, on 64-bit Linux.
	type siginfo struct {
		signo, errno, code, _ int32
		pid                   int32
	}
	var info unix.Siginfo
	for {
		err = unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	child := (*siginfo)(unsafe.Pointer(&info))
	return int(child.pid), err == nil && child.pid != 0, err
}
