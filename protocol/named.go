package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of sessions that have a name (rpc.md 8.2).
const (
	MethodSessionList = "session/list"
	MethodSessionEnd  = "session/end"

	// Notification, server to client.
	MethodSessionTaken = "session/taken"
)

// maxSessionName is the greatest length of a session's name, in bytes.
const maxSessionName = 128

// ValidSessionName reports whether a session may have the name: up to 128 ASCII letters,
// digits, dots, underscores and dashes, the first a letter or a digit.
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

// OpenedSession describes the session of a client to it.
type OpenedSession struct {
	Name string `json:"name,omitempty"` // "" for a session without a name
	// Created is true if this initialize made the session.
	Created bool `json:"created"`
	// RetainMs is how long the session is kept, in milliseconds, while nothing holds
	// it: no connection and, for a session with a name, no process.
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
	// ClientName is the attached client's name for itself, or that of the last attached one.
	ClientName  string `json:"clientName"`
	CreatedAtMs int64  `json:"createdAtMs"`
	RetainMs    uint64 `json:"retainMs"`
	// ExpiresAtMs is when the session will end, in milliseconds since 1970; nil while something
	// holds it.
	ExpiresAtMs *int64 `json:"expiresAtMs,omitempty"`
	// Running and Ended count its processes. A process whose output has not ended is running.
	Running int `json:"running"`
	Ended   int `json:"ended"`
}

// SessionParams names a session: the params of session/end.
type SessionParams struct {
	SessionID string `json:"sessionId"`
}

func (p *SessionParams) UnmarshalObject(o *Object) { p.SessionID = o.String("sessionId") }

// TakenNotification tells a client that another client has taken its session. It is the
// last message.
type TakenNotification struct {
	ClientName string `json:"clientName"`
}

func (n *TakenNotification) UnmarshalObject(o *Object) { n.ClientName = o.String("clientName") }
