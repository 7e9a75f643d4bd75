package judge

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/pack"
)

const (
	maxWords  = 16 << 10 // bytes of a command that is shown
	maxText   = 4 << 10  // bytes of any other text that is shown
	maxData   = 16 << 10 // bytes of the findings
	maxPacket = 96 << 10
)

// EventKind is the kind of an [Event].
type EventKind byte

const (
	Asked     EventKind = 'q' // the program waits for [Questions.Answer]
	Refused   EventKind = 't' // a rule has refused the program, and there is nothing to answer
	Withdrawn EventKind = 'w' // the program waits no longer; the event has only the ID of its question
)

// Event is a message of a [Judge] to the agent.
type Event struct {
	Kind EventKind
	Question
}

// Question is a question about a command: the program that would run, and the reason why it is not
// simply allowed.
type Question struct {
	ID          uint32 // the judge's number of it; 0 for a start and for a refusal
	PID, Parent int
	Argv        []string
	Truncated   bool // Argv is the beginning of it
	Exe, Dir    string
	Called      string // the path by which the program is called, maybe a link to Exe; "" of a start
	Reason      string
	Matched     string   // see [Matched]
	Proposed    []string // see [execpolicy.Verdict.Proposed]; of the program its real path
	Identity    string   // see [Exec]
	Unasked     bool     // it may run if nobody can be asked
	Decider     string   // see [execpolicy.Verdict.Decider]
}

func (e *Event) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{byte(e.Kind)}, e.ID)
	if e.Kind == Withdrawn {
		return b
	}
	b = pack.AppendInt(pack.AppendInt(b, e.PID), e.Parent)
	b = append(pack.AppendStrings(b, e.Argv), pack.Bool(e.Truncated))
	b = pack.AppendString(pack.AppendString(pack.AppendString(b, e.Exe), e.Called), e.Dir)
	b = pack.AppendString(pack.AppendString(b, e.Reason), e.Matched)
	b = pack.AppendString(pack.AppendStrings(b, e.Proposed), e.Identity)
	return pack.AppendString(append(b, pack.Bool(e.Unasked)), e.Decider)
}

func decode(b []byte) (e Event, err error) {
	d := pack.NewDecoder(b)
	e.Kind, e.ID = EventKind(d.Byte()), d.Uint32()
	if e.Kind == Withdrawn {
		return e, d.End()
	}
	d.Require(e.Kind == Asked || e.Kind == Refused)
	e.PID, e.Parent = d.Int(), d.Int()
	e.Argv, e.Truncated = d.Strings(maxPacket), d.Bool()
	e.Exe, e.Called, e.Dir = d.String(maxPacket), d.String(maxPacket), d.String(maxPacket)
	e.Reason, e.Matched = d.String(maxPacket), d.String(maxPacket)
	e.Proposed, e.Identity, e.Unasked = d.Strings(maxPacket), d.String(maxPacket), d.Bool()
	e.Decider = d.String(maxPacket)
	if !json.Valid([]byte(e.Matched)) { // it becomes a part of a message to the client
		e.Matched = Matched(nil)
	}
	return e, d.End()
}

// Matched renders the findings of a verdict as a JSON array. It has all findings or none, because a
// command can be as long as a message.
func Matched(findings []execpolicy.Finding) string {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(findings); err != nil || data.Len() > maxData || len(findings) == 0 {
		return "[]"
	}
	return string(bytes.TrimSpace(data.Bytes()))
}

// clip bounds a text. Only shown texts are clipped, never judged ones.
func clip(s string) string { return s[:min(len(s), maxText)] }

// words returns the shown words of a command.
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

// Questions is the agent's end of the socket of a [Judge]. Its methods may be called at once.
type Questions struct {
	socket int
	mu     sync.Mutex // held while the socket is used, except for reading
	closed bool
}

// Pair returns both ends. The caller closes the judge's after the process has it.
func Pair() (ours *Questions, theirs int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	return &Questions{socket: ends[0]}, ends[1], nil
}

// Serve calls take for each event, one after the other, until the judge is gone, sends what is no
// event, or [Questions.Hang] is called.
func (q *Questions) Serve(take func(Event)) {
	b := make([]byte, maxPacket)
	for {
		n, err := unix.Read(q.socket, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		e, err := decode(b[:n])
		if err != nil {
			return
		}
		take(e)
	}
}

// Answer answers the question of an event that is [Asked]. A judge that is gone needs no answer.
func (q *Questions) Answer(id uint32, allowed bool) {
	b := append(binary.LittleEndian.AppendUint32(nil, id), pack.Bool(allowed))
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed { // otherwise the number may now belong to another file
		_ = unix.Send(q.socket, b, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

// Hang ends Serve, and refuses waiting programs.
func (q *Questions) Hang() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		_ = unix.Shutdown(q.socket, unix.SHUT_RDWR)
	}
}

// Close closes the descriptor, once Serve has returned. After that no method has an effect.
func (q *Questions) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		unix.Close(q.socket)
	}
}
