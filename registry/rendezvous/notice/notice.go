// Package notice is what the servers of one registry tell each other about
// executors, harnesses and their streams, as JSON over NATS. What follows from a
// notice is decided by the rendezvous.
package notice

import (
	"encoding/json"

	"github.com/execagent/execagent/relay/frame"
)

// maxSize is how long a [Notice] may be, in bytes. A stream id may grow sixfold
// in JSON.
const maxSize = 8 << 10

// Kind tells notices apart.
type Kind string

// The kinds of notices. The head comment of package rendezvous says when each is
// sent, what it does, and what answers it.
const (
	Online  Kind = "online"  // the executor is here, with the presence of this revision
	Offline Kind = "offline" // the executor has gone, unless there is a newer presence
	Open    Kind = "open"    // to the executor's server: the stream's harness is here, or was
	Detach  Kind = "detach"  // to the executor's server: the harness is here no longer
	Moved   Kind = "moved"   // to the harness's server: the harness has come back elsewhere
	Refused Kind = "refused" // to the harness's server: the answer to an open
	Absent  Kind = "absent"  // to the harness's server: the executor with that presence is not here
	Unknown Kind = "unknown" // to the harness's server: the stream is not known here
	Taken   Kind = "taken"   // so many bytes have been passed on
	Beat    Kind = "beat"    // the server lives
	Leave   Kind = "leave"   // the server ends, or both have to find out anew what they know of each other
)

// Notice is what one server says to another or to all, in JSON. Which members count
// depends on the kind.
type Notice struct {
	Kind         Kind   `json:"kind"`
	Registration string `json:"registration,omitempty"`
	Revision     uint64 `json:"revision,omitempty"`
	Stream       string `json:"stream,omitempty"`
	Principal    string `json:"principal,omitempty"`
	Acknowledges bool   `json:"acknowledges,omitempty"`
	Detached     bool   `json:"detached,omitempty"`
	Revoked      bool   `json:"revoked,omitempty"`  // nobody may have the stream any more
	Intruder     bool   `json:"intruder,omitempty"` // refused, since the stream is another harness's
	Failing      bool   `json:"failing,omitempty"`  // refused, since too many handshakes have failed
	Bytes        int    `json:"bytes,omitempty"`
}

// Encode is the notice as text.
func (n Notice) Encode() []byte {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	return text
}

// Decode reads a notice. Members that it does not know come from a newer server, and
// are left out.
func Decode(text []byte) (Notice, bool) {
	var n Notice
	if len(text) > maxSize || json.Unmarshal(text, &n) != nil || len(n.Stream) > frame.MaxStreamID {
		return Notice{}, false
	}
	return n, true
}
