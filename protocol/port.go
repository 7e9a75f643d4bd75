package protocol

import "github.com/execagent/execagent/internal/strictjson"

// Methods of ports (rpc.md 8.11), an addition to the reference.
const (
	MethodPortList    = "port/list"
	MethodPortWatch   = "port/watch"
	MethodPortUnwatch = "port/unwatch"
	MethodPortChanged = "port/changed" // notification, server to client
)

// Bounds of ports.
const (
	// MaxPorts is how many ports a list has.
	MaxPorts = 4096
	// MaxPortWatches is how many watches of ports a connection has at once.
	MaxPortWatches = 16
)

// PortListParams asks for the TCP ports that listen on the server's side. With a sandbox, only those are
// listed that a process in it can connect to, without pid and program.
type PortListParams struct {
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

func (p *PortListParams) UnmarshalObject(o *Object) { p.Sandbox = sandbox(o) }

// PortListResult answers port/list and port/watch.
type PortListResult struct {
	Ports     []Port `json:"ports"` // sorted by port and address
	Truncated bool   `json:"truncated,omitempty"`
}

// Port is a TCP port that listens. UID, PID and Program are absent if the agent cannot see them.
type Port struct {
	Port    uint16  `json:"port"`
	Address string  `json:"address"` // of the host; "::" and "0.0.0.0" are all addresses
	UID     *uint64 `json:"uid,omitempty"`
	PID     *uint64 `json:"pid,omitempty"` // the lowest, if several processes have it
	Program *string `json:"program,omitempty"`
}

func (p *Port) read(o *strictjson.Object) {
	if n := o.OptUint16("port"); n != nil && *n > 0 {
		p.Port = *n
	} else if o.Require("port") != nil {
		o.Fail("port", "is not 1 to 65535")
	}
	p.Address = o.String("address")
	if o.Present("uid") {
		p.UID = new(o.Uint64("uid"))
	}
	if o.Present("pid") {
		p.PID = new(o.Uint64("pid"))
	}
	if o.Present("program") {
		p.Program = new(o.String("program"))
	}
}

// PortWatchParams asks for notifications of ports that open and close. The id is the client's choice, and
// unique among the watches of ports of a connection.
type PortWatchParams struct {
	WatchID string   `json:"watchId"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
}

func (p *PortWatchParams) UnmarshalObject(o *Object) {
	p.WatchID = watchID(o)
	p.Sandbox = sandbox(o)
}

// PortChangedNotification tells which ports have opened and closed since the one before, or since the
// answer to port/watch. A port that another process listens at now is in both lists.
type PortChangedNotification struct {
	WatchID string `json:"watchId"`
	Opened  []Port `json:"opened"`
	Closed  []Port `json:"closed"`
}

func (n *PortChangedNotification) UnmarshalObject(o *Object) {
	n.WatchID = o.String("watchId")
	n.Opened, n.Closed = []Port{}, []Port{}
	for name, list := range map[string]*[]Port{"opened": &n.Opened, "closed": &n.Closed} {
		o.Each(name, func(o *strictjson.Object) {
			var p Port
			p.read(o)
			*list = append(*list, p)
		})
	}
}
