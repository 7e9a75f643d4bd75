package main

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/tlsconfig"
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
func newMetrics(budget *rpc.Budget) *agent.Metrics {
	set := agent.NewMetrics()
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

// measureRefusals returns what counts the clients that a listener refuses.
func measureRefusals(set *agent.Metrics) func(transport.Refusal) {
	refused := map[transport.Refusal]*atomic.Uint64{}
	for _, reason := range transport.Refusals() {
		n := new(atomic.Uint64)
		set.Counter(executor.RefusedClients, executor.RefusedClientsHelp, n.Load, "reason", string(reason))
		refused[reason] = n
	}
	return func(reason transport.Refusal) { refused[reason].Add(1) }
}

// measureCertificate adds until when the certificate is valid that a listener shows: it is looked
// at for each page, so that a renewal is seen before a client has come.
func measureCertificate(set *agent.Metrics, config *tls.Config) {
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
