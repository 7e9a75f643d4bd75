package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxKept bounds the newest output that is kept of a process, as an agent keeps it, and maxHead the first output.
	maxKept, maxHead = 1 << 20, 64 << 10
	// maxPieces bounds the events whose output is kept, as an agent does.
	maxPieces = 50_000
	// linger is how long an exited command is waited for whose output is still open, because something that it has
	// started in the background has it. Each output starts the time again.
	linger = 300 * time.Millisecond
)

// process is a command with its newest output.
type process struct {
	id, command string
	started     time.Time
	handle      *client.Process
	writable    bool   // write_stdin works
	asks        bool   // the client that has started it can ask its user
	savedTo     string // the file that has all output; ""

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	pieces  []piece // the newest output
	kept    int     // its bytes
	head    []byte  // the first output
	partial bool    // the beginning of the output was gone when this program came
	read    uint64  // how much of the output was in an answer
	now     state
}

// piece is the output of one event.
type piece struct {
	seq  uint64
	at   uint64 // how many bytes there are before it
	data []byte
}

func (p piece) end() uint64 { return p.at + uint64(len(p.data)) }

// state is what is known of a process, besides its output.
type state struct {
	seq     uint64 // of the last event
	total   uint64 // bytes of output
	exited  bool
	closed  bool // nothing follows
	code    int
	denied  bool
	refused *protocol.Refusals
	protocol.Ending
	endedAt time.Time
	at      time.Time // of the last event
	err     error     // why no more is known
	notes   []string  // for the next answer
}

// ended reports whether the process has exited, or nothing more will be known of it.
func (s state) ended() bool { return s.exited || s.closed }

func newProcess(command string) *process {
	now := time.Now()
	return &process{command: command, started: now, changed: make(chan struct{}), now: state{at: now}}
}

// foundProcess is a process from before this program.
func foundProcess(handle *client.Process, listed protocol.ListedProcess) *process {
	p := newProcess(shown(listed.Argv))
	p.id, p.handle, p.started = listed.ProcessID, handle, time.UnixMilli(listed.StartedAtMs)
	p.writable = true // the agent says if it is not
	p.partial = handle.Skipped() > 0
	return p
}

// state returns what is known now.
func (p *process) state() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// begun reports whether the agent has started the process.
func (p *process) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handle != nil
}

// change calls f and wakes up all that wait.
func (p *process) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.now.at = time.Now()
	if p.now.ended() && p.now.endedAt.IsZero() {
		p.now.endedAt = p.now.at
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// note leaves a line for the next answer about the process.
func (p *process) note(line string) {
	p.change(func() {
		if len(p.now.notes) < maxNotes {
			p.now.notes = append(p.now.notes, short(line, 2*maxNote))
		}
	})
}

// follow takes events until the process or the client has ended.
func (p *process) follow() {
	for e, err := range p.handle.Events(context.Background()) {
		p.change(func() {
			if err != nil {
				p.now.err, p.now.closed = err, true
				return
			}
			p.now.seq = e.Seq
			switch e.Kind {
			case client.Output:
				p.add(e.Seq, e.Data)
			case client.Exited:
				p.now.exited, p.now.code, p.now.denied = true, e.ExitCode, e.SandboxDenied
				p.now.refused, p.now.Ending = e.Refusals, e.Ending
			case client.Closed:
				p.now.closed = true
			}
		})
		if err != nil {
			return
		}
	}
}

// add keeps output.
func (p *process) add(seq uint64, data []byte) {
	if room := maxHead - len(p.head); room > 0 && p.now.total == uint64(len(p.head)) {
		p.head = append(p.head, data[:min(room, len(data))]...)
	}
	p.pieces = append(p.pieces, piece{seq, p.now.total, data})
	p.now.total += uint64(len(data))
	p.kept += len(data)
	drop := 0
	for ; (p.kept > maxKept || len(p.pieces)-drop > maxPieces) && drop < len(p.pieces)-1; drop++ {
		p.kept -= len(p.pieces[drop].data)
		p.pieces[drop] = piece{} // its data is free
	}
	p.pieces = p.pieces[drop:] // moved only when it grows, because output can come in many tiny pieces
}

// place is where an answer begins: after an event, and after some bytes.
type place struct {
	seq   uint64
	bytes uint64
	lost  bool // older output is not kept any more, so bytes is not exact
}

// after returns the place after an event.
func (p *process) after(seq uint64) place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq == 0 {
		return place{lost: p.partial}
	}
	at := place{seq: seq, bytes: p.now.total}
	for i, piece := range p.pieces {
		if piece.seq > seq {
			at.bytes, at.lost = piece.at, i == 0 && piece.at > 0
			break
		}
	}
	return at
}

// excerpt is a part of the output.
type excerpt struct {
	text    string
	omitted uint64
	gone    uint64 // of the omitted bytes, those that are not kept any more
	// reread is the after_seq that reads what was omitted; nil: nothing was, or it is gone.
	reread *uint64
	next   uint64
}

// excerpt returns the output from a place on: all, or its beginning and its end if it is longer than most bytes. With
// tail it returns only the end.
func (p *process) excerpt(from place, most int, tail bool) excerpt {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := excerpt{next: p.now.seq}
	p.read = max(p.read, p.now.total)
	begin := p.now.total // of what is kept after the place
	var kept []byte
	for _, piece := range p.pieces {
		if piece.seq > from.seq {
			begin = min(begin, piece.at)
			kept = append(kept, piece.data...)
		}
	}
	from.bytes = min(from.bytes, begin)
	if p.now.total-from.bytes <= uint64(most) && begin == from.bytes {
		out.text = text(kept)
		return out
	}
	var head []byte
	switch half := most / 2; {
	case tail:
	case from.bytes == 0 && len(p.head) > 0:
		head = p.head[:min(half, len(p.head))]
	case begin == from.bytes:
		head = kept[:min(half, len(kept))]
	}
	shown := from.bytes + uint64(len(head))
	resume := max(shown, begin, p.now.total-min(p.now.total, uint64(most-len(head))))
	out.omitted = resume - shown
	out.text = text(head)
	if out.omitted > 0 {
		if len(p.pieces) > 0 {
			out.gone = min(out.omitted, max(p.pieces[0].at, shown)-shown)
		}
		for i, piece := range p.pieces {
			if piece.end() > shown && piece.at < resume {
				// The piece before ends in the head, or is not kept.
				seq := piece.seq - 1
				if i > 0 {
					seq = p.pieces[i-1].seq
				}
				out.reread = new(max(seq, from.seq))
				break
			}
		}
		out.text += gapMark(out.omitted)
	}
	out.text += text(kept[resume-begin:])
	return out
}

// text returns output as text. What is not UTF-8, also at a cut, becomes U+FFFD.
func text(data []byte) string { return strings.ToValidUTF8(string(data), "\uFFFD") }

// unread returns how many bytes of output no answer had.
func (p *process) unread() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.total - p.read
}

// lastLine returns the end of the output, in one short line that is harmless where a client shows it.
func (p *process) lastLine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, piece := range slices.Backward(p.pieces) {
		data := bytes.TrimRight(piece.data, "\r\n\t ")
		if line := bytes.TrimSpace(data[bytes.LastIndexAny(data, "\r\n")+1:]); len(line) > 0 {
			return program.Plain(short(text(line), maxProgress))
		}
	}
	return ""
}

// takeNotes returns the notes, once.
func (p *process) takeNotes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	notes := p.now.notes
	p.now.notes = nil
	return notes
}

// wait returns when the process has ended, when until has come, or when wake is closed or has a value. done reports
// whether the process has ended.
func (p *process) wait(ctx context.Context, until time.Time, wake <-chan struct{}) (done bool) {
	for {
		p.mu.Lock()
		now, changed := p.now, p.changed
		p.mu.Unlock()
		if now.closed {
			return true
		}
		limit := until
		if now.exited {
			if limit = now.at.Add(linger); limit.After(until) {
				limit = until
			}
		}
		timer := time.NewTimer(time.Until(limit))
		select {
		case <-changed:
		case <-wake:
			timer.Stop()
			return false
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
			return now.exited
		}
		timer.Stop()
	}
}
