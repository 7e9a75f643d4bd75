package executor

import (
	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/relay/direct"
	"github.com/execagent/execagent/relay"
)

// RefusedClients names the metric of clients that got no connection. Listeners have the same
// metric.
const (
	RefusedClients     = "agent_refused_clients_total"
	RefusedClientsHelp = "Clients that were refused before they were connected."
)

// measureLink adds the metrics of remote mode.
func measureLink(set *agent.Metrics, link *relay.Link) {
	set.Counter(RefusedClients, RefusedClientsHelp, func() uint64 { return link.Stats().Refused }, "reason", "handshake")
	measureConnections(set, link.Ready, link.Refused, func() uint64 { return link.Stats().Connects })
	set.Gauge("agent_relay_streams", "Streams of clients, including those that wait for a new connection.", func() float64 { return float64(link.Stats().Streams) })
	const bytes, passed = "agent_relay_bytes_total", "Bytes of the connections to the rendezvous."
	set.Counter(bytes, passed, func() uint64 { return link.Stats().Sent }, "direction", "sent")
	set.Counter(bytes, passed, func() uint64 { return link.Stats().Received }, "direction", "received")
}

// measureDirect adds the metrics of the direct transport.
func measureDirect(set *agent.Metrics, link *direct.Link) {
	measureConnections(set, func() bool { return link.Open() > 0 }, link.Refused, link.Opened)
	set.Gauge("agent_direct_websockets", "Open websockets of the direct transport, including those that wait for a client.", func() float64 { return float64(link.Open()) })
}

// measureConnections adds the metrics that every transport of remote mode has.
func measureConnections(set *agent.Metrics, up, refused func() bool, connects func() uint64) {
	flag := func(set func() bool) func() float64 {
		return func() float64 {
			if set() {
				return 1
			}
			return 0
		}
	}
	set.Gauge("agent_relay_link_up", "Whether the connection to the rendezvous is up.", flag(up))
	set.Gauge("agent_relay_credential_refused", "Whether the registry refuses the credential of this executor.", flag(refused))
	set.Counter("agent_relay_reconnects_total", "Connections to the rendezvous after the first.", func() uint64 { return max(connects(), 1) - 1 })
}
