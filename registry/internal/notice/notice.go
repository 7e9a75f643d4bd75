// Package notice has the messages that the servers of one registry send each other
// about executors, harnesses and their streams, as JSON over NATS. Package rendezvous
// says what a server does with a message.
package notice

import (
	"encoding/json"

	"github.com/execagent/execagent/internal/relay/frame"
)

// maxSize bounds the text of a [Notice], in bytes. In JSON a stream id may be six times as
// long, if all of its bytes have to be escaped.
const maxSize = 8 << 10

// Kind is the kind of a notice.
type Kind string

// The kinds of notices. The package comment of rendezvous has the cause, the effect and the
// answer of each kind.
const (
	Online  Kind = "online"  // the executor is at the sender, with the presence of this revision
	Offline Kind = "offline" // the executor has left the sender, unless there is a newer presence
	Open    Kind = "open"    // to the executor's server: the stream's harness is at the sender, or was
	Detach  Kind = "detach"  // to the executor's server: the harness is not at the sender any more
	Moved   Kind = "moved"   // to the harness's server: the harness has connected to another server
	Refused Kind = "refused" // to the harness's server: the harness does not get the stream
	Absent  Kind = "absent"  // to a server that wrote to the executor: the presence of this revision is not at the sender
	Unknown Kind = "unknown" // to the harness's server: the sender does not know the stream
	Taken   Kind = "taken"   // the sender has passed on or lost a number of bytes of the stream
	Beat    Kind = "beat"    // the sender lives
	Leave   Kind = "leave"   // the sender ends, or both servers must tell each other their state again
)

// Notice is a message of one server to another server or to all. The kind decides which members
// are used: Registration in all kinds except beat and leave, Stream in the kinds about one
// stream.
type Notice struct {
	Kind         Kind   `json:"kind"`
	Registration string `json:"registration,omitempty"`
	Revision     uint64 `json:"revision,omitempty"` // of the executor's presence
	Stream       string `json:"stream,omitempty"`
	Principal    string `json:"principal,omitempty"`    // open: the id of the harness's principal
	Acknowledges bool   `json:"acknowledges,omitempty"` // open: both ends of the stream acknowledge
	Detached     bool   `json:"detached,omitempty"`     // open: the harness is at no server
	Revoked      bool   `json:"revoked,omitempty"`      // open: no harness may have the stream any more
	Intruder     bool   `json:"intruder,omitempty"`     // refused: the stream belongs to another harness
	Failing      bool   `json:"failing,omitempty"`      // refused: too many handshakes have failed
	Bytes        int    `json:"bytes,omitempty"`        // taken: the number of bytes
	Environment  string `json:"environment,omitempty"`  // online: the environment has this registration, perhaps in the place of another
}

// Encode returns the notice as JSON.
func (n Notice) Encode() []byte {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	return text
}

// Decode decodes a notice, and returns false for text that is too long or no notice. A newer
// server may send members and kinds that this version does not know. Decode leaves out such
// members, and returns such kinds.
func Decode(text []byte) (Notice, bool) {
	var n Notice
	if len(text) > maxSize || json.Unmarshal(text, &n) != nil || len(n.Stream) > frame.MaxStreamID {
		return Notice{}, false
	}
	return n, true
}
