package main

import (
	"crypto/tls"
	"net/http"

	"github.com/execagent/execagent/agent/metrics"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// transport says how clients come.
func (f *serverFlags) transport() string {
	switch listen := f.listen(); {
	case f.Remote != nil:
		return "relay"
	case isUnix(listen):
		return "unix"
	case listen == "stdio", listen == "stdio://":
		return "stdio"
	}
	return "websocket"
}

// newMetrics returns the metrics that every server has.
func newMetrics(budget *rpc.Budget) *metrics.Set {
	set := metrics.NewSet()
	b := build.This("agent")
	set.Gauge("agent_build_info", "What runs: the versions are in the labels.", func() float64 { return 1 },
		"version", b.Version, "revision", b.Commit, "goversion", b.Go, "protocol", b.Compatible)
	set.Gauge("agent_message_budget_bytes", "Memory of messages that arrive or are in use.", func() float64 {
		used, _ := budget.Usage()
		return float64(used)
	})
	set.Gauge("agent_message_budget_limit_bytes", "What agent_message_budget_bytes is held to.", func() float64 {
		_, limit := budget.Usage()
		return float64(limit)
	})
	return set
}

const (
	refusedClients     = "agent_refused_clients_total"
	refusedClientsHelp = "Clients that were refused before they had a connection."
)

// measureRefusals returns what counts the clients that a listener refuses.
func measureRefusals(set *metrics.Set) func(transport.Refusal) {
	refused := map[transport.Refusal]*metrics.Counter{}
	for _, reason := range transport.Refusals() {
		refused[reason] = set.Counter(refusedClients, refusedClientsHelp, "reason", string(reason))
	}
	return func(reason transport.Refusal) { refused[reason].Inc() }
}

// measureLink adds the metrics of remote mode.
func measureLink(set *metrics.Set, link *relay.Link) {
	set.CountedBy(refusedClients, refusedClientsHelp, func() uint64 { return link.Stats().Refused }, "reason", "handshake")
	set.Gauge("agent_relay_link_up", "Whether the connection to the rendezvous is up.", func() float64 {
		if link.Ready() {
			return 1
		}
		return 0
	})
	set.Gauge("agent_relay_credential_refused", "Whether the registry refuses the credential of this executor.", func() float64 {
		if link.Refused() {
			return 1
		}
		return 0
	})
	set.CountedBy("agent_relay_reconnects_total", "Connections to the rendezvous after the first.", func() uint64 { return max(link.Stats().Connects, 1) - 1 })
	set.Gauge("agent_relay_streams", "Streams of clients, also those that wait for the next connection.", func() float64 { return float64(link.Stats().Streams) })
	const bytes, passed = "agent_relay_bytes_total", "Bytes of the connections to the rendezvous."
	set.CountedBy(bytes, passed, func() uint64 { return link.Stats().Sent }, "direction", "sent")
	set.CountedBy(bytes, passed, func() uint64 { return link.Stats().Received }, "direction", "received")
}

// measureCertificate adds until when the certificate is valid that a listener shows: it is looked
// at for each page, so that a renewal is seen before a client has come.
func measureCertificate(set *metrics.Set, config *tls.Config) {
	set.Gauge("agent_tls_certificate_not_after_timestamp_seconds", "When the certificate ends that is shown to clients.", func() float64 {
		return float64(tlsconfig.NotAfter(config).Unix())
	})
}

// page returns what answers /metrics on the listener, nil where nobody asked for that.
func (s *server) page() http.Handler {
	if !s.flags.Metrics {
		return nil
	}
	return s.metrics
}
