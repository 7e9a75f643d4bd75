package store

import "cmp"

// Limits bound the use of one registry process by one principal. Each process counts
// separately. A zero member stands for the default, a negative member for no limit.
type Limits struct {
	Requests     float64 `json:"requests,omitempty"`      // API requests per second; validate requests count separately, with the same limit
	RequestBurst int     `json:"request_burst,omitempty"` // requests, and validate requests, at once
	Connections  int     `json:"connections,omitempty"`   // open websockets
	Streams      int     `json:"streams,omitempty"`       // streams of its websockets
	Bytes        int64   `json:"bytes,omitempty"`         // relayed bytes per second; each frame counts its length plus 4 KiB
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
