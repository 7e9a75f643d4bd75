package judge

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/packed"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/internal/pack"
)

// Program is what is about to be executed.
type Program struct {
	PID, Parent int
	Dir         string // the working directory
	Path        string // as the caller has named it; "" by a descriptor
	// Real is the file, then those of the interpreters that run it; Heads are their beginnings.
	Real  []string
	Heads [][]byte
	Argv  []string
	// Loader is the file that the last one of Real has the kernel load and run beside it, which
	// finds Final; "" if there is none. With Loaded it is set where the program itself was loaded
	// so, by another one that was judged already.
	Loader string
	Final  []string
	// Identity tells the first file of Real from others that have its path later.
	Identity string
	// Loaded: the kernel has loaded it already, so that nobody can be asked.
	Loaded bool
	// Thread is the one that calls execve. Where it is killed, nobody waits for an answer.
	Thread int
}

// Judge decides about the programs of one command. Its methods may be called at once.
type Judge struct {
	policy *execpolicy.Policy
	socket int // -1: nobody is asked

	mu      sync.Mutex // guards what follows
	first   []string   // the command itself, until it was executed; nil afterwards
	last    uint32
	waiting map[uint32]chan answer // for answers; nil: no more come

	declined [][sha256.Size]byte // by who asked for what, the newest last
	sending  sync.Mutex          // one packet at a time
}

// New returns a judge by a policy that was packed. First are the arguments of the command, whose
// start was decided about before. Questions go to socket.
func New(policy []byte, first []string, socket int) (*Judge, error) {
	p, err := packed.Policy(policy)
	if err != nil {
		return nil, err
	}
	j := &Judge{policy: p, socket: socket, first: first, waiting: map[uint32]chan answer{}}
	if socket >= 0 {
		go j.receive() // as long as this process lives
	}
	return j, nil
}

// Decide returns why a program may not run, or nil. It blocks as long as somebody is asked.
func (j *Judge) Decide(p *Program) error {
	if p.Loaded && execpolicy.IsLoader(path.Base(p.Loader)) {
		return nil // all programs have one
	}
	all := candidates(p)
	v := j.policy.Exec(all...)
	if j.isFirst(p) {
		// The command itself was decided about as a whole: a shell by its script. What a rule
		// says of the file that is really there counts still.
		ruled := slices.ContainsFunc(v.Findings, func(f execpolicy.Finding) bool { return f.Decision == rule.Forbidden && f.Match.Rule != nil })
		if !ruled {
			return nil
		}
	}
	switch {
	case v.Decision == rule.Allow:
		return nil
	case v.Decision == rule.Forbidden, p.Loaded, j.socket < 0:
		j.tell(p, &v)
		return unix.EPERM
	}
	// A shell that is refused a program goes on along its PATH, and finds it there again.
	key := fmt.Sprintf("%d\x00%s\x00%s", p.PID, strings.Join(p.Real, "\x00"), strings.Join(p.Argv, "\x00"))
	if j.isDeclined(key) {
		return unix.EPERM
	}
	switch j.ask(p, &v, j.allowsUnasked(all)) {
	case accepted:
		return nil
	case declined:
		j.decline(key)
	}
	return unix.EPERM
}

// allowsUnasked tells whether what prompts may run where nobody can be asked. What the client
// itself wants to be asked about may not.
func (j *Judge) allowsUnasked(all []execpolicy.Program) bool {
	client := j.policy.Client()
	return j.policy.AllowUnasked && (client == nil || client.Exec(all...).Decision == rule.Allow)
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

func (j *Judge) isFirst(p *Program) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.first == nil || !slices.Equal(j.first, p.Argv) {
		return false
	}
	j.first = nil
	return true
}

// candidates returns all that the program may be taken for. Nothing is looked up again: the files
// are those that the check of the new image compares with.
func candidates(p *Program) []execpolicy.Program {
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
	program := rule.Absolute(p.Path, p.Dir, "")
	if program == "" || p.Path == "" {
		program = p.Real[0]
	}
	all := execpolicy.Candidates(program, p.Argv, p.Dir, look)
	for ; looked < len(p.Real); looked++ { // interpreters that the kernel sees, and Candidates does not
		all = append(all, execpolicy.Program{Argv: slices.Concat([]string{p.Real[looked]}, p.Argv), Path: p.Real[looked]})
	}
	// The kernel begins in the loader: a static program that a file names as its own runs there,
	// and finds the arguments of that file.
	if !p.Loaded && p.Loader != "" && !execpolicy.IsLoader(path.Base(p.Loader)) {
		all = append(all, execpolicy.Candidates(p.Loader, p.Final, p.Dir, func(string) (execpolicy.File, bool) {
			return execpolicy.File{Real: p.Loader}, true
		})...)
	}
	return all
}

const (
	asked     = 'q'
	told      = 't'
	withdrawn = 'w'

	maxWords  = 16 << 10 // bytes of a command that is shown
	maxPacket = 96 << 10
	maxData   = 16 << 10 // bytes of the findings
)

// Question is what an agent is asked, or told of.
type Question struct {
	ID          uint32
	Told        bool // it was refused, and needs no answer
	Withdrawn   bool // it was asked, and needs no answer any more; nothing but the ID counts
	PID, Parent int
	Argv        []string
	Truncated   bool
	Exe, Dir    string
	Reason      string
	Matched     string   // JSON of the findings
	Proposed    []string // see [execpolicy.Verdict.Proposed]; of the program its real path
	Identity    string   // see [Program]
	Unasked     bool     // it may run where nobody can be asked
	Decider     string   // see [execpolicy.Verdict.Decider]
}

func (q *Question) encode() []byte {
	kind := byte(asked)
	switch {
	case q.Told:
		kind = told
	case q.Withdrawn:
		kind = withdrawn
	}
	b := binary.LittleEndian.AppendUint32([]byte{kind}, q.ID)
	b = pack.AppendInt(pack.AppendInt(b, q.PID), q.Parent)
	b = append(pack.AppendStrings(b, q.Argv), pack.Bool(q.Truncated))
	b = pack.AppendString(pack.AppendString(b, q.Exe), q.Dir)
	b = pack.AppendString(pack.AppendString(b, q.Reason), q.Matched)
	b = pack.AppendString(pack.AppendStrings(b, q.Proposed), q.Identity)
	return pack.AppendString(append(b, pack.Bool(q.Unasked)), q.Decider)
}

func decode(b []byte) (q Question, err error) {
	d := pack.NewDecoder(b)
	kind := d.Byte()
	d.Require(kind == asked || kind == told || kind == withdrawn)
	q.Told, q.Withdrawn = kind == told, kind == withdrawn
	q.ID = d.Uint32()
	q.PID, q.Parent = d.Int(), d.Int()
	q.Argv, q.Truncated = d.Strings(maxPacket), d.Bool()
	q.Exe, q.Dir = d.String(maxPacket), d.String(maxPacket)
	q.Reason, q.Matched = d.String(maxPacket), d.String(maxPacket)
	q.Proposed, q.Identity, q.Unasked = d.Strings(maxPacket), d.String(maxPacket), d.Bool()
	q.Decider = d.String(maxPacket)
	return q, d.End()
}

func (j *Judge) question(p *Program, v *execpolicy.Verdict) Question {
	q := Question{
		PID: p.PID, Parent: p.Parent, Exe: clip(p.Real[0]), Dir: clip(p.Dir), Reason: clip(v.Reason()), Matched: "[]", Identity: p.Identity,
		Decider: clip(v.Decider()),
	}
	q.Argv, q.Truncated = words(p.Argv)
	if proposed, cut := words(proposed(p, v)); !cut {
		q.Proposed = proposed
	}
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v.Findings); err == nil && data.Len() <= maxData && len(v.Findings) > 0 {
		q.Matched = string(bytes.TrimSpace(data.Bytes()))
	}
	return q
}

// proposed is what a rule could allow. By a link the process could lead to another program
// afterwards, and a file without a path is one of any number of that name.
func proposed(p *Program, v *execpolicy.Verdict) []string {
	argv := v.Proposed()
	switch {
	case len(argv) == 0 || !slices.Equal(argv[1:], p.Argv[min(1, len(p.Argv)):]):
		return argv
	case !path.IsAbs(p.Real[0]) || strings.HasSuffix(p.Real[0], " (deleted)"):
		return nil
	}
	return slices.Concat(p.Real[:1], argv[1:])
}

// clip bounds a text. Only what is shown is clipped, never what is judged.
func clip(s string) string { return s[:min(len(s), 4096)] }

// words returns the words of a command that are shown.
func words(argv []string) (shown []string, cut bool) {
	left := maxWords
	for _, word := range argv {
		if left -= len(word) + 4; left < 0 {
			return shown, true
		}
		shown = append(shown, word)
	}
	return shown, false
}

// tell tells the agent of a refusal, if it reads.
func (j *Judge) tell(p *Program, v *execpolicy.Verdict) {
	if j.socket < 0 {
		return
	}
	q := j.question(p, v)
	q.Told = true
	_ = unix.Send(j.socket, q.encode(), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// answer is what became of a question.
type answer byte

const (
	unanswered answer = iota // nobody is there any more who asks, or answers
	declined
	accepted
)

// ask asks the agent. Whatever goes wrong refuses.
func (j *Judge) ask(p *Program, v *execpolicy.Verdict, unasked bool) answer {
	q := j.question(p, v)
	q.Unasked = unasked
	got := make(chan answer, 1)
	j.mu.Lock()
	if j.waiting == nil {
		j.mu.Unlock()
		return unanswered
	}
	j.last++
	q.ID = j.last
	j.waiting[q.ID] = got
	j.mu.Unlock()
	gone, release := killed(p.Thread, p.PID)
	defer release()
	if j.send(&q) != nil {
		j.forget(q.ID)
		return unanswered
	}
	select {
	case a := <-got:
		return a
	case <-gone:
		j.forget(q.ID)
		_ = j.send(&Question{ID: q.ID, Withdrawn: true}) // an agent that is gone has closed it
		return unanswered
	}
}

// send sends a question when it is its turn.
func (j *Judge) send(q *Question) (err error) {
	j.sending.Lock()
	defer j.sending.Unlock()
	err = unix.EINTR
	for err == unix.EINTR {
		err = unix.Send(j.socket, q.encode(), unix.MSG_NOSIGNAL)
	}
	return err
}

// forget waits for an answer no longer.
func (j *Judge) forget(id uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, id)
}

// killed returns what is closed when a thread has ended, if the kernel can tell, else when its
// process has. Before Linux 6.9 it cannot: then the question about a thread that ends because
// another one of its process executes a program stays open as long as it may. Release ends the
// wait.
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
		return nil, func() {} // the question ends as others do
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

// receive takes the answers until the agent closes its end; then all that waits is refused.
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

// Desk is the agent's end. Its methods may be called at once.
type Desk struct{ socket int }

// Pair returns both ends. The caller closes the judge's after the process has it.
func Pair() (ours *Desk, theirs int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	return &Desk{socket: ends[0]}, ends[1], nil
}

// Serve calls take for each question, one after the other, until the judge is gone or the desk is
// closed. A question that is not told has to be answered by [Desk.Answer].
func (d *Desk) Serve(take func(Question)) {
	b := make([]byte, maxPacket)
	for {
		n, err := unix.Read(d.socket, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		q, err := decode(b[:n])
		if err != nil {
			return
		}
		take(q)
	}
}

// Answer answers a question. A judge that is gone needs no answer.
func (d *Desk) Answer(id uint32, allowed bool) {
	b := append(binary.LittleEndian.AppendUint32(nil, id), pack.Bool(allowed))
	_ = unix.Send(d.socket, b, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// Hang ends Serve, and refuses what waits.
func (d *Desk) Hang() { _ = unix.Shutdown(d.socket, unix.SHUT_RDWR) }

// Close gives the descriptor back, once Serve has returned.
func (d *Desk) Close() { unix.Close(d.socket) }
