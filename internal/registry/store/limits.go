package store

import "cmp"

// Limits say how much one principal may do at one registry process; each process counts
// for itself. A zero member stands for the default, a negative one for no limit.
type Limits struct {
	Requests     float64 `json:"requests,omitempty"`      // API requests per second, and as many questions about harnesses
	RequestBurst int     `json:"request_burst,omitempty"` // requests, and questions, at once
	Connections  int     `json:"connections,omitempty"`   // open websockets
	Streams      int     `json:"streams,omitempty"`       // streams of its websockets
	Bytes        int64   `json:"bytes,omitempty"`         // relayed for it, per second; each frame counts its length plus 4 KiB
}

// Or returns l with the members of other where those of l are zero.
func (l Limits) Or(other Limits) Limits {
	l.Requests = cmp.Or(l.Requests, other.Requests)
	l.RequestBurst = cmp.Or(l.RequestBurst, other.RequestBurst)
	l.Connections = cmp.Or(l.Connections, other.Connections)
	l.Streams = cmp.Or(l.Streams, other.Streams)
	l.Bytes = cmp.Or(l.Bytes, other.Bytes)
	return l
}
