package judge

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// Exec is a program that is about to be executed.
type Exec struct {
	PID, Parent int
	Dir         string // the working directory
	// Called is the absolute path by which the caller has named the file, and which leads to it, or the
	// path of the file. Written is the path in the call, if it does not lead to the file.
	Called, Written string
	// Real is the file, then the files of its interpreters; Heads are their beginnings.
	Real  []string
	Heads [][]byte
	Argv  []string
	// Loader is the file that the kernel loads and runs for the last file of Real, with the
	// arguments Final; "" if there is none. With Loaded, it is set if the program itself was loaded
	// so, by another program that was already judged.
	Loader string
	Final  []string
	// Identity distinguishes these files from later files with their paths.
	Identity string
	// Loaded: the kernel has already loaded it, so nobody can be asked.
	Loaded bool
	// Thread is the thread that calls execve. If it is killed, no answer is needed.
	Thread int
}

// Judge decides about the programs of one command. Its methods may be called at once.
type Judge struct {
	policy *execpolicy.Policy
	socket int // -1: nobody is asked

	stderr stderr // of the command; see Judge.TellOn

	mu      sync.Mutex // guards what follows
	first   []string   // the command itself, until it was executed; nil afterwards
	leader  int        // the process of the command; 0 until then
	last    uint32
	waiting map[uint32]chan ruling // for answers; nil: no more come

	declined [][sha256.Size]byte // by process and program, the newest last
	sending  sync.Mutex          // one packet at a time
}

// New returns a judge with a packed policy. first are the arguments of the command, whose start was
// already decided. Questions go to socket.
func New(policy []byte, first []string, socket int) (*Judge, error) {
	p, err := execpolicy.ReadPacked(policy)
	if err != nil {
		return nil, err
	}
	j := &Judge{policy: p, socket: socket, first: first, waiting: map[uint32]chan ruling{}}
	if socket >= 0 {
		go j.receive() // as long as this process lives
	}
	return j, nil
}

// Decide returns the reason why a program may not run, or nil. It blocks while the agent is asked.
func (j *Judge) Decide(p *Exec) error {
	if p.Loaded && execpolicy.IsLoader(path.Base(p.Loader)) {
		return nil // all programs have one
	}
	all, decide := candidates(p), (*execpolicy.Policy).Exec
	if j.isFirst(p) {
		decide = (*execpolicy.Policy).First
	}
	v := decide(j.policy, all...)
	switch {
	case v.Decision == rule.Allow:
		return nil
	case v.Decision == rule.Forbidden, p.Loaded, j.socket < 0:
		j.tell(p, &v)
		j.tellRefused(p, cmp.Or(v.Because(), "it requires approval"))
		return unix.EPERM
	}
	// A shell whose program is refused continues along its PATH, and finds the program there again.
	key := fmt.Sprintf("%d\x00%s\x00%s\x00%s\x00%s", p.PID, p.Identity, p.Dir, strings.Join(p.Real, "\x00"), strings.Join(p.Argv, "\x00"))
	if j.isDeclined(key) {
		return unix.EPERM
	}
	// Nobody needs to be asked, unless the client's own policy asks.
	client := j.policy.Client()
	unasked := j.policy.AllowUnasked && (client == nil || decide(client, all...).Decision == rule.Allow)
	switch j.ask(p, &v, unasked) {
	case accepted:
		return nil
	case declined:
		j.decline(key)
		j.tellRefused(p, "not approved: "+cmp.Or(v.Because(), "it requires approval"))
	}
	return unix.EPERM
}

// maxDeclined is how many refusals are remembered.
const maxDeclined = 256

func (j *Judge) isDeclined(key string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.declined, sha256.Sum256([]byte(key)))
}

func (j *Judge) decline(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.declined) >= maxDeclined {
		j.declined = slices.Delete(j.declined, 0, 1)
	}
	j.declined = append(j.declined, sha256.Sum256([]byte(key)))
}

func (j *Judge) isFirst(p *Exec) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.first == nil || !slices.Equal(j.first, p.Argv) {
		return false
	}
	j.first, j.leader = nil, p.PID
	return true
}

// candidates returns all commands that the program may count as. It looks up nothing again: the
// files are those that the check of the new image compares with.
func candidates(p *Exec) []execpolicy.Command {
	looked := 0
	look := func(string) (execpolicy.File, bool) {
		if looked >= len(p.Real) {
			return execpolicy.File{}, false
		}
		f := execpolicy.File{Real: p.Real[looked]}
		if looked < len(p.Heads) {
			f.Head = p.Heads[looked]
		}
		looked++
		return f, true
	}
	all := execpolicy.Candidates(p.Called, p.Argv, p.Dir, look)
	if written := rule.Absolute(p.Written, p.Dir, ""); written != "" {
		// It allows nothing, but a program that is forbidden by its name may have been called by it.
		all = append(all, execpolicy.Command{
			Argv: slices.Concat([]string{written}, p.Argv[min(1, len(p.Argv)):]), Path: written, As: execpolicy.Written, Covered: true})
	}
	for ; looked < len(p.Real); looked++ { // interpreters that the kernel sees, and Candidates does not
		all = append(all, execpolicy.Command{
			Argv: slices.Concat([]string{p.Real[looked]}, p.Argv), Path: p.Real[looked], As: execpolicy.Interpreter, Covered: true})
	}
	// The kernel begins in the loader: a static program that a file names as its loader runs, with
	// the arguments of that file.
	if !p.Loaded && p.Loader != "" && !execpolicy.IsLoader(path.Base(p.Loader)) {
		first := len(all)
		all = append(all, execpolicy.Candidates(p.Loader, p.Final, p.Dir, func(string) (execpolicy.File, bool) {
			return execpolicy.File{Real: p.Loader}, true
		})...)
		all[first].As, all[first].Covered = execpolicy.Loader, true
	}
	return all
}

// questionOf returns the question about a program that a verdict refuses or leaves to the client.
func questionOf(p *Exec, v *execpolicy.Verdict) Question {
	q := Question{
		PID: p.PID, Parent: p.Parent, Exe: clip(p.Real[0]), Called: clip(p.Called), Dir: clip(p.Dir), Reason: clip(v.Reason()), Matched: Matched(v.Findings),
		Identity: p.Identity, Decider: clip(v.Decider()),
	}
	q.Argv, q.Truncated = words(p.Argv)
	if proposed, cut := words(proposed(p, v)); !cut {
		q.Proposed = proposed
	}
	return q
}

// proposed returns the prefix that a rule could allow. The process could change a link to
// lead to another program, and a file without a path shares its name with any number of
// others.
func proposed(p *Exec, v *execpolicy.Verdict) []string {
	argv := v.Proposed()
	switch {
	case len(argv) == 0 || !slices.Equal(argv[1:], p.Argv[min(1, len(p.Argv)):]):
		return argv
	case !path.IsAbs(p.Real[0]) || strings.HasSuffix(p.Real[0], " (deleted)"):
		return nil
	}
	return slices.Concat(p.Real[:1], argv[1:])
}

// tell tells the agent of a refusal, if there is one and it reads.
func (j *Judge) tell(p *Exec, v *execpolicy.Verdict) {
	e := Event{Kind: Refused, Question: questionOf(p, v)}
	_ = unix.Send(j.socket, e.encode(), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// ruling is the outcome of a question.
type ruling byte

const (
	unanswered ruling = iota // the asking thread, or the agent, is gone
	declined
	accepted
)

// ask asks the agent. Any error refuses.
func (j *Judge) ask(p *Exec, v *execpolicy.Verdict, unasked bool) ruling {
	e := Event{Kind: Asked, Question: questionOf(p, v)}
	e.Unasked = unasked
	got := make(chan ruling, 1)
	j.mu.Lock()
	if j.waiting == nil {
		j.mu.Unlock()
		return unanswered
	}
	j.last++
	e.ID = j.last
	j.waiting[e.ID] = got
	j.mu.Unlock()
	defer j.forget(e.ID)
	gone, release := killed(p.Thread, p.PID)
	defer release()
	if j.send(&e) != nil {
		return unanswered
	}
	select {
	case a := <-got:
		return a
	case <-gone:
		_ = j.send(&Event{Kind: Withdrawn, Question: Question{ID: e.ID}}) // an agent that is gone has closed the question
		return unanswered
	}
}

// send sends an event when it is its turn.
func (j *Judge) send(e *Event) (err error) {
	j.sending.Lock()
	defer j.sending.Unlock()
	err = unix.EINTR
	for err == unix.EINTR {
		err = unix.Send(j.socket, e.encode(), unix.MSG_NOSIGNAL)
	}
	return err
}

// forget stops waiting for an answer.
func (j *Judge) forget(id uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, id)
}

// killed returns a channel that is closed when a thread has ended, if the kernel can report that,
// else when its process has. Before Linux 6.9 it cannot: then the question of a thread that ends
// because another thread of its process executes a program stays open until its time limit. Release
// ends the wait.
func killed(thread, process int) (gone <-chan struct{}, release func()) {
	const pidfdThread = unix.O_EXCL // PIDFD_THREAD
	fd, err := unix.PidfdOpen(thread, unix.PIDFD_NONBLOCK|pidfdThread)
	if err != nil {
		fd, err = unix.PidfdOpen(process, unix.PIDFD_NONBLOCK)
	}
	switch {
	case err == unix.ESRCH:
		ended := make(chan struct{})
		close(ended)
		return ended, func() {}
	case err != nil:
		return nil, func() {} // the question ends like others
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		conn, err := file.SyscallConn()
		if err != nil {
			return
		}
		err = conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
		if err == nil {
			close(ended)
		}
	})
	return ended, func() {
		_ = file.Close() // wakes the watcher
		watching.Wait()
	}
}

// receive takes the answers until the agent closes its end; then all waiting programs are refused.
func (j *Judge) receive() {
	var b [5]byte
	for {
		n, err := unix.Read(j.socket, b[:])
		if err == unix.EINTR {
			continue
		}
		j.mu.Lock()
		if err != nil || n != len(b) {
			for _, waits := range j.waiting {
				waits <- unanswered
			}
			j.waiting = nil
			j.mu.Unlock()
			return
		}
		id := binary.LittleEndian.Uint32(b[:])
		if waits := j.waiting[id]; waits != nil {
			a := declined
			if b[4] == 1 {
				a = accepted
			}
			waits <- a
			delete(j.waiting, id)
		}
		j.mu.Unlock()
	}
}
