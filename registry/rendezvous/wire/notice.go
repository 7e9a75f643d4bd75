package wire

import "encoding/json"

// MaxNotice is how long a [Notice] may be, in bytes. A stream id may grow sixfold
// in JSON.
const MaxNotice = 8 << 10

// NoticeKind tells notices apart.
type NoticeKind string

// The kinds of notices, and what each says.
const (
	NoticeOnline  NoticeKind = "online"  // the executor is here, with the presence of this revision
	NoticeOffline NoticeKind = "offline" // it has gone, unless there is a newer presence
	NoticeOpen    NoticeKind = "open"    // to the executor's server: the stream's harness is here or, detached or revoked, was
	NoticeDetach  NoticeKind = "detach"  // to the executor's server: it is here no longer
	NoticeMoved   NoticeKind = "moved"   // to the harness's server: it has come back elsewhere
	NoticeRefused NoticeKind = "refused" // to the harness's server: the answer to an open
	NoticeAbsent  NoticeKind = "absent"  // to the harness's server: the executor with that presence is not here
	NoticeUnknown NoticeKind = "unknown" // to the harness's server: the executor's does not know of the stream
	NoticeTaken   NoticeKind = "taken"   // bytes that have been passed on
	NoticeBeat    NoticeKind = "beat"    // the server lives
	NoticeLeave   NoticeKind = "leave"   // it ends, or both have to find out anew what they know of each other
)

// Notice is a message between servers, in JSON. Which members count depends on
// the kind.
type Notice struct {
	Kind         NoticeKind `json:"kind"`
	Registration string     `json:"registration,omitempty"`
	Revision     uint64     `json:"revision,omitempty"`
	Stream       string     `json:"stream,omitempty"`
	Principal    string     `json:"principal,omitempty"`
	Acknowledges bool       `json:"acknowledges,omitempty"`
	Detached     bool       `json:"detached,omitempty"`
	Revoked      bool       `json:"revoked,omitempty"`  // the harness may not have it any more
	Intruder     bool       `json:"intruder,omitempty"` // refused for that reason
	Failing      bool       `json:"failing,omitempty"`  // or for that
	Bytes        int        `json:"bytes,omitempty"`
}

// Encode is the notice as text.
func (n Notice) Encode() []byte {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	return text
}

// DecodeNotice reads a notice. Members that it does not know are those of a newer
// server.
func DecodeNotice(text []byte) (Notice, bool) {
	var n Notice
	if len(text) > MaxNotice || json.Unmarshal(text, &n) != nil || len(n.Stream) > MaxStreamID {
		return Notice{}, false
	}
	return n, true
}
