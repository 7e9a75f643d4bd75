package protocol

import (
	"math"
	"slices"
)

// Streams of process output.
const (
	StreamStdout = "stdout"
	StreamStderr = "stderr"
	StreamPTY    = "pty"
)

// ReadParams asks for retained output after sequence number AfterSeq (rpc.md
// 4.8). Only servers with namedSessions know the members after the blank line
// (rpc.md 8.2).
type ReadParams struct {
	ProcessID string  `json:"processId"`
	AfterSeq  *uint64 `json:"afterSeq"`
	MaxBytes  *uint64 `json:"maxBytes"`
	WaitMs    *uint64 `json:"waitMs"`

	SessionID *string `json:"sessionId,omitempty"` // a session other than the caller's
	// Timestamps asks for the AtMs of chunks.
	Timestamps bool `json:"timestamps,omitempty"`
	// ExitOnly asks for no output, and waits only for the exit.
	ExitOnly bool `json:"exitOnly,omitempty"`
}

func (p *ReadParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	p.AfterSeq = o.OptUint64("afterSeq")
	p.MaxBytes = o.OptUint64("maxBytes")
	p.WaitMs = o.OptUint64("waitMs")
	p.SessionID = o.OptString("sessionId")
	p.Timestamps = o.OptBool("timestamps", false)
	p.ExitOnly = o.OptBool("exitOnly", false)
}

// OutputChunk is one piece of output, as it was read from the process.
type OutputChunk struct {
	Seq    uint64 `json:"seq"`
	Stream string `json:"stream"`
	Chunk  []byte `json:"chunk"`
	// AtMs is when it was read from the process, in milliseconds since 1970, if requested.
	AtMs *int64 `json:"atMs,omitempty"`
	// Omitted is how many bytes of the stream were left out before Chunk, by a MaxOutputBytes.
	Omitted uint64 `json:"omitted,omitempty"`
}

func (c *OutputChunk) encode(e *encoder) {
	e.dst = appendUint(e.dst, `"seq":`, c.Seq)
	e.dst = append(e.dst, `,"stream":"`...)
	e.dst = append(e.dst, c.Stream...)
	e.dst = append(e.dst, `","chunk":`...)
	e.bytes(c.Chunk)
	if c.AtMs != nil {
		e.dst = appendInt(e.dst, `,"atMs":`, *c.AtMs)
	}
	if c.Omitted > 0 {
		e.dst = appendUint(e.dst, `,"omitted":`, c.Omitted)
	}
	e.dst = append(e.dst, '}')
}

// ReadResult answers process/read.
type ReadResult struct {
	Chunks        []OutputChunk `json:"chunks"`
	NextSeq       uint64        `json:"nextSeq"`
	Exited        bool          `json:"exited"`
	ExitCode      *int          `json:"exitCode"`
	Closed        bool          `json:"closed"`
	Failure       *string       `json:"failure"`
	SandboxDenied bool          `json:"sandboxDenied"`
	// Refusals are those of a process that has exited, for a client that wants them; nil: none is known.
	Refusals *Refusals `json:"refusals,omitempty"`
	Ending
}

// Ending says what else is known of the end of a process that has exited.
type Ending struct {
	// TimedOut: the server has ended the process, because the time of its TimeoutMs was up.
	TimedOut bool `json:"timedOut,omitempty"`
	// OutOfMemory: the kernel has ended one of its processes, because a limit of memory was reached.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
}

func (n *Ending) append(dst []byte) []byte {
	if n.TimedOut {
		dst = append(dst, `,"timedOut":true`...)
	}
	if n.OutOfMemory {
		dst = append(dst, `,"outOfMemory":true`...)
	}
	return dst
}

func (r *ReadResult) AppendJSON(dst []byte) []byte {
	e := encoder{dst: dst}
	r.encode(&e)
	return e.dst
}

func (r *ReadResult) encode(e *encoder) {
	e.dst = append(e.dst, `{"chunks":[`...)
	for i := range r.Chunks {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		e.dst = append(e.dst, '{')
		r.Chunks[i].encode(e)
	}
	e.dst = appendUint(e.dst, `],"nextSeq":`, r.NextSeq)
	e.dst = appendBool(e.dst, `,"exited":`, r.Exited)
	if r.ExitCode == nil {
		e.dst = append(e.dst, `,"exitCode":null`...)
	} else {
		e.dst = appendInt(e.dst, `,"exitCode":`, int64(*r.ExitCode))
	}
	e.dst = appendBool(e.dst, `,"closed":`, r.Closed)
	if r.Failure == nil {
		e.dst = append(e.dst, `,"failure":null`...)
	} else {
		e.dst = appendText(e.dst, `,"failure":`, *r.Failure)
	}
	e.dst = appendBool(e.dst, `,"sandboxDenied":`, r.SandboxDenied)
	e.dst = append(r.Ending.append(r.Refusals.append(e.dst)), '}')
}

// OutputNotification announces one chunk of output.
type OutputNotification struct {
	ProcessID string `json:"processId"`
	OutputChunk
}

func (n *OutputNotification) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"processId":`, n.ProcessID)
	e := encoder{dst: append(dst, ',')}
	n.OutputChunk.encode(&e)
	return e.dst
}

var streams = [...]string{StreamStdout, StreamStderr, StreamPTY}

// Known reports whether the stream is one of the protocol's.
func (c *OutputChunk) Known() bool { return slices.Contains(streams[:], c.Stream) }

// HoldsMessage says that Chunk lies in the message.
func (*OutputNotification) HoldsMessage() {}

func (n *OutputNotification) UnmarshalObject(o *Object) {
	n.ProcessID = o.String("processId")
	n.Seq = o.Uint64("seq")
	n.Stream = o.OneOf("stream", streams[:]...)
	n.Chunk = o.Base64InPlace("chunk")
	n.Omitted = between(o, "omitted", 0, math.MaxUint64)
}

// ExitedNotification announces the end of the process itself. Output of other
// members of its group may still follow.
type ExitedNotification struct {
	ProcessID     string `json:"processId"`
	Seq           uint64 `json:"seq"`
	ExitCode      int    `json:"exitCode"` // 128+n after signal n
	SandboxDenied bool   `json:"sandboxDenied"`
	// Refusals are as in [ReadResult].
	Refusals *Refusals `json:"refusals,omitempty"`
	Ending
}

func (n *ExitedNotification) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"processId":`, n.ProcessID)
	dst = appendUint(dst, `,"seq":`, n.Seq)
	dst = appendInt(dst, `,"exitCode":`, int64(n.ExitCode))
	dst = appendBool(dst, `,"sandboxDenied":`, n.SandboxDenied)
	return append(n.Ending.append(n.Refusals.append(dst)), '}')
}

func (n *ExitedNotification) UnmarshalObject(o *Object) {
	n.ProcessID = o.String("processId")
	n.Seq = o.Uint64("seq")
	n.ExitCode = int(o.Int64("exitCode"))
	n.SandboxDenied = o.OptBool("sandboxDenied", false)
	n.Refusals = refusals(o)
	n.TimedOut, n.OutOfMemory = o.OptBool("timedOut", false), o.OptBool("outOfMemory", false)
}

// ClosedNotification announces the end of all output: the last event of a
// process.
type ClosedNotification struct {
	ProcessID string `json:"processId"`
	Seq       uint64 `json:"seq"`
}

func (n *ClosedNotification) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"processId":`, n.ProcessID)
	dst = appendUint(dst, `,"seq":`, n.Seq)
	return append(dst, '}')
}

func (n *ClosedNotification) UnmarshalObject(o *Object) {
	n.ProcessID = o.String("processId")
	n.Seq = o.Uint64("seq")
}
