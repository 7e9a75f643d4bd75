package protocol

import (
	"github.com/execagent/execagent/internal/strictjson"
)

// Methods of watches (rpc.md 8), an addition to the reference.
const (
	MethodFSWatch   = "fs/watch"
	MethodFSUnwatch = "fs/unwatch"
	MethodFSChanged = "fs/changed" // notification, server to client
)

// Bounds of watches.
const (
	// maxWatchID is how many bytes the id of a watch has.
	maxWatchID = 128
	// MaxWatches is how many watches a connection has at once.
	MaxWatches = 128
)

// WatchParams asks for notifications of what changes at Path, which need not exist, and in it where
// it is a directory. The id is the client's choice and unique among the watches of a connection;
// they end with it.
type WatchParams struct {
	WatchID   string   `json:"watchId"`
	Path      PathURI  `json:"path"`
	Recursive bool     `json:"recursive,omitempty"` // with all directories below
	Sandbox   *Sandbox `json:"sandbox,omitempty"`
}

func (p *WatchParams) UnmarshalObject(o *Object) {
	p.WatchID = watchID(o)
	p.Path = pathMember(o, "path")
	p.Recursive = o.OptBool("recursive", false)
	p.Sandbox = sandbox(o)
}

func watchID(o *strictjson.Object) string {
	id := o.String("watchId")
	if len(id) > maxWatchID {
		o.Fail("watchId", "%d bytes are more than %d", len(id), maxWatchID)
	}
	return id
}

// WatchResult answers fs/watch. Path is what is watched: without links, as fs/canonicalize gives
// it.
type WatchResult struct {
	Path PathURI `json:"path"`
}

// UnwatchParams ends a watch. Nothing more of it is told after the answer; unknown ids are ignored.
type UnwatchParams struct {
	WatchID string `json:"watchId"`
}

func (p *UnwatchParams) UnmarshalObject(o *Object) { p.WatchID = watchID(o) }

// ChangedNotification tells what has changed since the one before, in the order in which it
// happened; what happened to a path many times is told once.
type ChangedNotification struct {
	WatchID string       `json:"watchId"`
	Changes []FileChange `json:"changes"`
	// Overflow: more has changed. Whoever watches has to look at all of it.
	Overflow bool `json:"overflow,omitempty"`
}

// ChangeKind is what happened to a path.
type ChangeKind string

// The kinds.
const (
	// ChangeCreated: something new is at the path; what was there is gone, with all below it.
	ChangeCreated ChangeKind = "created"
	// ChangeModified: the content, mode, owner or times have changed.
	ChangeModified ChangeKind = "modified"
	// ChangeRemoved: nothing is at the path any more, nor below it.
	ChangeRemoved ChangeKind = "removed"
	// ChangeRenamed: what was at From is at the path, with all below it. What was at the path
	// before is gone.
	ChangeRenamed ChangeKind = "renamed"
)

// FileChange is one change.
type FileChange struct {
	Path PathURI    `json:"path"`
	Kind ChangeKind `json:"kind"`
	From *PathURI   `json:"from,omitempty"` // with ChangeRenamed
}

func (n *ChangedNotification) UnmarshalObject(o *Object) {
	n.WatchID = o.String("watchId")
	o.Each("changes", func(o *strictjson.Object) {
		change := FileChange{Path: pathMember(o, "path")}
		change.Kind = ChangeKind(o.OneOf("kind",
			string(ChangeCreated), string(ChangeModified), string(ChangeRemoved), string(ChangeRenamed)))
		if change.Kind == ChangeRenamed {
			change.From = new(pathMember(o, "from"))
		}
		n.Changes = append(n.Changes, change)
	})
	n.Overflow = o.OptBool("overflow", false)
}
