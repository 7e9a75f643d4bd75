package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of sessions that have a name (rpc.md 8.2).
const (
	MethodSessionList = "session/list"
	MethodSessionEnd  = "session/end"

	// Notification, server to client.
	MethodSessionTaken = "session/taken"
)

// maxSessionName is how long the name of a session may be, in bytes.
const maxSessionName = 128

// ValidSessionName tells whether a session may have the name: up to 128 letters, digits,
// dots, underscores and dashes of ASCII, the first a letter or a digit.
func ValidSessionName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxSessionName
}

// sessionName reads a name that may be absent.
func sessionName(o *strictjson.Object, member string) *string {
	name := o.OptString(member)
	if name != nil && !ValidSessionName(*name) {
		o.Fail(member, "%.256q is no name: it has 1 to %d of A-Z a-z 0-9 . _ -, the first a letter or digit", *name, maxSessionName)
	}
	return name
}

// OpenedSession tells a client which session it has.
type OpenedSession struct {
	Name string `json:"name,omitempty"` // "" for a session without
	// Created is true when the session has begun with this initialize.
	Created bool `json:"created"`
	// RetainMs is for how long the session is kept when nothing holds it any more: a
	// connection, or, of a session with a name, a process.
	RetainMs uint64 `json:"retainMs"`
}

// SessionListParams asks for the caller's named sessions.
type SessionListParams struct{}

// UnmarshalObject accepts any object.
func (*SessionListParams) UnmarshalObject(*Object) {}

// SessionListResult answers session/list, oldest session first.
type SessionListResult struct {
	Sessions []ListedSession `json:"sessions"`
}

// ListedSession is one named session of the caller's.
type ListedSession struct {
	SessionID string `json:"sessionId"`
	Name      string `json:"name"`
	Attached  bool   `json:"attached"`
	// ClientName is what the client that is attached calls itself, or the last one that was.
	ClientName  string `json:"clientName"`
	CreatedAtMs int64  `json:"createdAtMs"`
	RetainMs    uint64 `json:"retainMs"`
	// ExpiresAtMs is when the session will end; nil while something holds it.
	ExpiresAtMs *int64 `json:"expiresAtMs,omitempty"`
	// Running and Ended count its processes. One whose output has not ended is running.
	Running int `json:"running"`
	Ended   int `json:"ended"`
}

// SessionParams names a session: the params of session/end.
type SessionParams struct {
	SessionID string `json:"sessionId"`
}

func (p *SessionParams) UnmarshalObject(o *Object) { p.SessionID = o.String("sessionId") }

// TakenNotification tells a client that another one has taken its session. Nothing comes
// after it.
type TakenNotification struct {
	ClientName string `json:"clientName"`
}

func (n *TakenNotification) UnmarshalObject(o *Object) { n.ClientName = o.String("clientName") }
