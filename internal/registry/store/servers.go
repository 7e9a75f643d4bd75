package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Server describes a server. The server writes it itself.
type Server struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Limits  Limits    `json:"limits"`     // of principals without limits of their own
	Grace   string    `json:"grace"`      // a duration
	Skew    string    `json:"clock_skew"` // a duration
}

// introduce writes the description of a server, which expires after nodeTTL.
func (st *Store) introduce(ctx context.Context, s Server) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = st.servers.Put(ctx, s.Node, text)
	return unavailable("introducing the node", err)
}

// Servers returns the descriptions of the servers that live, the oldest first. For servers of
// older versions only the node is known.
func (st *Store) Servers(ctx context.Context) ([]Server, error) {
	nodes, err := all[time.Time](ctx, st.nodes)
	if err != nil {
		return nil, err
	}
	known, err := all[Server](ctx, st.servers)
	if err != nil {
		return nil, err
	}
	servers := make([]Server, 0, len(nodes))
	for node := range nodes {
		s := known[node]
		s.Node = node
		servers = append(servers, s)
	}
	slices.SortFunc(servers, func(a, b Server) int {
		if c := a.Started.Compare(b.Started); c != 0 {
			return c
		}
		return strings.Compare(a.Node, b.Node)
	})
	return servers, nil
}

// Backend describes the NATS server that keeps the state of a registry.
type Backend struct {
	Kind    string `json:"kind"`             // embedded, or nats
	Folder  string `json:"folder,omitempty"` // of an embedded server
	Server  string `json:"server,omitempty"` // of a cluster: the server that this store is connected to
	Version string `json:"nats_version"`
}

// Backend returns the description of the NATS server that keeps the state.
func (st *Store) Backend() Backend {
	b := Backend{Kind: "embedded", Folder: st.folder, Version: st.nc.ConnectedServerVersion()}
	if st.folder == "" {
		b.Kind, b.Server = "nats", st.nc.ConnectedUrlRedacted()
	}
	return b
}
