package procs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrNoProgram reports an empty argv.
	ErrNoProgram = errors.New("argv is empty")
	// ErrNUL reports a NUL byte in argv, the environment or the directory; the
	// text around it says where.
	ErrNUL = errors.New("contains a NUL byte")
	// ErrNotTTY reports a resize of a process that has no terminal.
	ErrNotTTY = errors.New("process has no terminal")
	// ErrTTY reports the closing of a stdin that is a terminal, which cannot be
	// closed separately: write 0x04 instead.
	ErrTTY = errors.New("stdin is a terminal")
	// ErrStdinFull reports that TryWrite would have had to wait.
	ErrStdinFull = errors.New("stdin queue is full")
	// ErrStdinCut reports a write after an earlier write was delivered only in
	// part: the earlier write must be repeated first.
	ErrStdinCut = errors.New("an earlier write was cut short")
	// ErrStdinGone reports a write to the stdin of a process that has exited.
	ErrStdinGone = errors.New("process has exited")
)

// DefaultRetainBytes is the output kept for one process, in bytes; rpc.md 7.
const DefaultRetainBytes = 1 << 20

// Winsize is the size of a terminal in characters.
type Winsize struct{ Rows, Cols uint16 }

// Spec describes what to start. The slices belong to the process afterwards.
type Spec struct {
	// Argv is the command. Its first element is the program: with a slash, a
	// path, which may be relative to Dir; else a name that is searched in the
	// PATH of Env.
	Argv []string
	// Shown is the result of [Process.Argv]; nil: Argv.
	Shown []string
	// Arg0 is the argv[0] that the program sees; nil: Argv[0].
	Arg0 *string
	// Dir is the absolute working directory.
	Dir string
	// Env is the whole environment, as "NAME=value".
	Env []string
	// TTY gives the process a controlling terminal instead of pipes.
	TTY bool
	// Size is the size of the terminal. Zero rows become 24, zero columns 80.
	Size Winsize
	// LoginShell becomes SHELL in the environment of a process with a terminal,
	// unless it has one (rpc.md 4.4). If empty, nothing is added.
	LoginShell string
	// Stdin makes stdin a pipe; else it is /dev/null. It is ignored with TTY.
	Stdin bool
	// Sink is called with every event, in order, one at a time. It may block as
	// long as it likes. While it blocks, the process can write no more than a
	// pipe holds, and Close waits. Data is valid only during the call. If Sink
	// is nil, events are only kept.
	Sink func(Event)
	// Bulk is for a process with very much output: a chunk then has up to 256 KiB instead
	// of 64 KiB. It is ignored with TTY.
	Bulk bool
	// RetainBytes bounds the output kept for Read, and the tails of MaxOutput
	// together; zero: DefaultRetainBytes, or as much as two streams have under
	// MaxOutput if that is more. The newest chunk is kept whatever its size.
	RetainBytes int64
	// Budget bounds the output of all processes that share it; nil: no bound.
	Budget *Budget
	// Reaper must be set when the agent reaps orphans, and else be nil.
	Reaper *Reaper
	// Guard kills, when the agent dies, all processes that KillGroup would
	// kill. If nil, only the leader dies with the agent, by its parent-death
	// signal.
	Guard *Guard
	// Stage, if not nil, returns the program to execute in place of the
	// command. Start calls Stage once, after it has checked the command. Start
	// then does not look for the program: the stage does, because only the
	// stage sees the files that the command will see.
	Stage func(Program) (*Stage, error)
	// Cgroup is the control group that the process is born into: killing it
	// also reaches processes that left the session. It may be nil. If Start
	// succeeds, Close closes it.
	Cgroup *Cgroup
	// Last, if not nil, is called when the leader has exited and all of its output was delivered. What it
	// returns, at most 64 KiB, is delivered as the last output of the leader: on Stderr, or on the terminal.
	Last func(exitCode int) []byte
	// Timeout, if not zero, is how long the process may run after [Process.StartClock]. Then it gets
	// SIGTERM, and two seconds later all that KillGroup reaches is killed.
	Timeout time.Duration
	// Expired, if not nil, is called after that.
	Expired func()
	// MaxOutput, if not zero, bounds the output of each stream, in bytes. The first half is delivered at
	// once. Of what follows, the last half is delivered when the leader has exited, or at the end of the
	// stream. What lies between is left out and counted in [Event.Omitted].
	MaxOutput uint64
	// User, if not nil, is the user that the process runs as. This process must be root.
	User *User
	// Freed, if not nil, is called once the process holds no open descriptor any more: after the last
	// event, or, if the leader left a process in its group, after the end of that one. Close calls it
	// too, once the group is killed.
	Freed func()
}

// User is who a process runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // the supplementary groups
}

// EventKind is the kind of an event.
type EventKind uint8

// The kinds of events, in the order in which a process can have them.
const (
	Output EventKind = iota + 1 // Stream and Data are set
	Exited                      // the leader is reaped, ExitCode is set
	Closed                      // all output has ended too: the last event
)

// Stream names the source of output.
type Stream uint8

// The streams: Stdout and Stderr of a process with pipes, PTY for all output of
// a terminal.
const (
	Stdout Stream = iota + 1
	Stderr
	PTY
)

// String returns the name of s on the wire; rpc.md 4.6, 4.8.
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	case PTY:
		return "pty"
	}
	return "unknown"
}

// Event is one event of a process.
type Event struct {
	// Seq counts the events of one process from 1, without gaps.
	Seq    uint64
	Kind   EventKind
	Stream Stream
	// Data is output, at most 64 KiB.
	Data []byte
	// Omitted is how many bytes of the stream were left out before Data. Data may then be empty.
	Omitted uint64
	// ExitCode is the exit code of the leader, or 128+n after signal n. It is
	// -1 if another part of the program took the status.
	ExitCode int
	Ending
}

// Ending says what else is known of the end of a process, when it has exited.
type Ending struct {
	// TimedOut: the process was ended because its time was up.
	TimedOut bool
	// OutOfMemory: the kernel has ended a process because a limit of memory was reached.
	OutOfMemory bool
}

// Process is a started process and the group that it leads. All methods may be
// called concurrently and at any time, also after Close.
type Process struct {
	argv    []string // clipped
	tty     bool
	started time.Time
	sink    func(Event)
	group   *group
	leash   *leash // nil: there is no stage, or it has no Leash
	cgroup  *Cgroup
	guard   *Guard
	slot    guardSlot
	streams []*stream
	stdin   *stdin // nil: /dev/null
	log     log

	deliver sync.Mutex // held while one event is numbered, kept and announced
	// open counts the parts that Closed waits for: the streams, and the exit.
	open    atomic.Int32
	exited  atomic.Bool // the leader is reaped
	closing atomic.Bool // set by Close: events are no longer wanted
	end     sync.Once   // closes ending
	ending  chan struct{}
	begin   sync.Once
	begun   chan struct{}
	done    chan struct{}
	running sync.WaitGroup
	freed   sync.Once // Close releases group and slot
	free    func()    // calls Spec.Freed once
	last    func(exitCode int) []byte

	clock     chan struct{} // closed by StartClock
	clockOnce sync.Once
	outcome   atomic.Int32 // of a time limit
}

// Begin lets events flow. Until Begin the process runs, but its output stays in
// the kernel, so that a caller can first tell its client of the start (rpc.md
// 2.6).
func (p *Process) Begin() {
	p.begin.Do(func() {
		for _, s := range p.streams {
			p.running.Go(func() { p.pump(s) })
		}
		close(p.begun)
	})
}

// emit numbers, keeps and announces one event.
func (p *Process) emit(ev Event) {
	p.deliver.Lock()
	defer p.deliver.Unlock()
	ev.Seq = p.log.add(ev)
	if p.sink != nil && !p.closing.Load() {
		p.sink(ev)
	}
}

// endPart notes the end of one part of the process: its exit, or the end of one
// stream. It is called once for each, after the last event of that part. The last
// call closes the process.
func (p *Process) endPart() {
	if p.open.Add(-1) > 0 {
		return
	}
	p.emit(Event{Kind: Closed})
	if p.group.release() {
		p.unguard()
	} else if p.group.held() {
		p.running.Go(p.lookAgain)
	}
	if !p.group.held() {
		p.free()
	}
	close(p.done)
}

// firstLook is how long after the end of a process lookAgain first looks at its
// group, if that was not empty. Usually only zombies were left, which had ended
// with the leader, and after this time they have been reaped.
const firstLook = 100 * time.Millisecond

// lookAgain releases the resources held for the group of an ended process, once
// the group is empty. The kernel does not announce that, so lookAgain looks,
// each time after ten times as long, until Close.
func (p *Process) lookAgain() {
	for wait := firstLook; p.group.held(); wait *= 10 {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.ending:
			timer.Stop()
			return
		}
		if p.group.release() {
			p.unguard()
		}
	}
	p.free()
}

// unguard frees the slot. Only the first call has an effect: the last endPart
// calls it, or later lookAgain, and Close in any case.
func (p *Process) unguard() {
	p.guard.remove(p.slot)
	p.slot = 0
}

// TryWrite is Write that does not wait: if it would have to, it writes nothing
// and fails with ErrStdinFull.
func (p *Process) TryWrite(id string, data []byte) (WriteStatus, error) {
	if p.stdin == nil {
		return StdinClosed, nil
	}
	return p.stdin.tryWrite(id, data)
}

// Write queues data for stdin and returns once the child has taken all but the
// last 1 MiB of all writes. The caller may then reuse data.
//
// The id makes a write idempotent: the last 4,096 accepted ids are remembered,
// and a write with one of them is answered with Accepted and writes nothing. A
// write that waits when the process ends is answered with Accepted (rpc.md
// 4.9); a later write fails with ErrStdinGone. Data that the child no longer
// reads is dropped.
//
// A waiting write is done before stdin is closed. Waiting writes have no order
// among themselves, so callers must write one after the other.
//
// If ctx ends first, data of up to 1 MiB has not been written. A part of longer
// data may have been written; its length is remembered with the id, and the
// same write, when repeated, continues there. Until then every other write
// fails with ErrStdinCut, so nothing can get in between.
func (p *Process) Write(ctx context.Context, id string, data []byte) (WriteStatus, error) {
	if p.stdin == nil {
		return StdinClosed, nil
	}
	return p.stdin.write(ctx, id, data)
}

// CloseStdin closes stdin once all earlier writes, including waiting ones, have
// been delivered. It does not wait for that. A write that was cut short and not
// repeated is not completed. CloseStdin fails with ErrTTY on a terminal.
func (p *Process) CloseStdin() (WriteStatus, error) {
	if p.tty {
		return 0, ErrTTY
	}
	if p.stdin == nil {
		return StdinClosed, nil
	}
	return p.stdin.finish()
}

// Signal sends sig to the process group, and to no other group of the session,
// also after the exit of the leader. SIGKILL reaches everything that KillGroup
// reaches if the leader has exited, and everything that a stage has started;
// Signal waits for the latter, at most the Grace of the [Stage]. A stage cannot
// pass SIGSTOP on, so it gets SIGTSTP.
func (p *Process) Signal(sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		p.leash.pull()
	} else if p.leash.keep(sig) {
		return
	}
	switch {
	case p.group.signal(p.leash.passed(sig)):
	case sig == syscall.SIGKILL:
		p.KillGroup()
	default:
		p.group.signalRest(sig)
	}
}

// Terminate kills the group and then the rest of the session, if the leader has
// not exited, and reports whether it had not. If it has exited, its background
// children keep running (rpc.md 4.9).
func (p *Process) Terminate() (running bool) {
	if running = p.group.signal(0); running {
		p.KillGroup()
	}
	return running
}

// KillGroup kills every member of the group, also after the exit of the leader,
// and every other member of its session, such as the jobs of a shell, which are
// groups of their own.
//
// A process that made its own session survives. Members of the session in other
// groups survive too, in one case: if the leader and its whole group are gone,
// and all remaining members were born after the leader was reaped. Then nothing
// proves that the session is still this one, and not a stranger's session with
// the same number.
//
// KillGroup looks through all processes of the host, which takes about a
// microsecond each, unless no process can be left.
func (p *Process) KillGroup() { KillGroups(p) }

// Resize sets the size of the terminal; it fails with ErrNotTTY if there is
// none. After the end of the output it does nothing.
func (p *Process) Resize(size Winsize) error {
	if !p.tty {
		return ErrNotTTY
	}
	return p.streams[0].resize(size)
}

// Read returns the kept output after event number after, oldest first. With
// maxBytes it returns whole chunks up to that many bytes together, and at least
// one (rpc.md 4.8).
func (p *Process) Read(after uint64, maxBytes *uint64) Snapshot { return p.log.read(after, maxBytes) }

// Kept returns how many bytes of output Read could return now.
func (p *Process) Kept() int64 { return p.log.kept() }

// Wait blocks until there is output after event number after, or the process
// has closed, or it has exited and there was an event after that number (rpc.md
// 4.8). It fails only if ctx ends first.
func (p *Process) Wait(ctx context.Context, after uint64) error { return p.log.wait(ctx, after) }

// WaitExit blocks until the Exited event. It fails only if ctx ends first.
func (p *Process) WaitExit(ctx context.Context) error {
	return p.log.await(ctx, func() bool { return p.log.exited })
}

// Ready reports whether Wait would return at once.
func (p *Process) Ready(after uint64) bool { return p.log.ready(after) }

// Done is closed after the Closed event was delivered.
func (p *Process) Done() <-chan struct{} { return p.done }

// State summarizes the events so far: exit, exit code, close, and the number of
// the next event.
func (p *Process) State() (exited bool, exitCode int, closed bool, nextSeq uint64) {
	return p.log.state()
}

// ExitedAt returns when the Exited event came, the zero time before that.
func (p *Process) ExitedAt() time.Time {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	return p.log.exitAt
}

// PID returns the process id of the leader, which is also the id of its group
// and session.
func (p *Process) PID() int { return p.group.pid }

// Argv returns a copy of the command, of which at most 4 KiB are kept: whole
// arguments, then the beginning of the next one and "…". An argument counts 16
// bytes besides its text.
func (p *Process) Argv() []string { return slices.Clone(p.argv) }

// TTY reports whether the process has a terminal.
func (p *Process) TTY() bool { return p.tty }

// StartedAt returns when the program was executed.
func (p *Process) StartedAt() time.Time { return p.started }

// Close kills like KillGroup, waits until the leader is reaped and all
// goroutines have ended, and frees the kept output. The Sink gets no more
// events, but Close waits for a Sink that blocks.
//
// Close does not wait for a group that it may not kill, such as the group of a
// setuid program: it returns the error, and a goroutine stays to reap the leader
// when it ends. It also returns an error if a process in a Cgroup does not end;
// another Close then tries again.
func (p *Process) Close() error {
	p.closing.Store(true)
	p.end.Do(func() { close(p.ending) })
	p.leash.pull()
	_ = p.cgroup.kill() // linux.Close below kills again and returns the error
	err := p.group.kill()
	if err == nil {
		p.group.sweep()
	}
	p.Begin()
	if p.stdin != nil {
		p.stdin.end()
	}
	for _, s := range p.streams {
		s.interrupt()
	}
	if err == nil {
		p.running.Wait()
		p.freed.Do(func() {
			p.group.abandon()
			p.unguard()
			p.free()
		})
		err = p.cgroup.Close()
	}
	p.log.free()
	return err
}
