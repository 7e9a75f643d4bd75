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

// newMetrics returns the metrics that every server has.
func newMetrics(budget *rpc.Budget) *agent.Metrics {
	set := agent.NewMetrics()
	b := build.This("agent")
	set.Gauge("agent_build_info", "Always 1. The labels hold the version.", func() float64 { return 1 },
		"version", b.Version, "revision", b.Commit, "goversion", b.Go, "protocol", b.Compatible)
	set.Gauge("agent_message_budget_bytes", "Memory of messages that are arriving or in use.", func() float64 {
		used, _ := budget.Usage()
		return float64(used)
	})
	set.Gauge("agent_message_budget_limit_bytes", "Limit of agent_message_budget_bytes.", func() float64 {
		_, limit := budget.Usage()
		return float64(limit)
	})
	return set
}

// measureRefusals returns a function that counts the clients that a listener refuses.
func measureRefusals(set *agent.Metrics) func(transport.Refusal) {
	refused := map[transport.Refusal]*atomic.Uint64{}
	for _, reason := range transport.Refusals() {
		n := new(atomic.Uint64)
		set.Counter(executor.RefusedClients, executor.RefusedClientsHelp, n.Load, "reason", string(reason))
		refused[reason] = n
	}
	return func(reason transport.Refusal) { refused[reason].Add(1) }
}

// measureCertificate adds the end of the validity of the listener's certificate. The certificate is
// read for each scrape, so that a renewal is visible before a client has connected.
func measureCertificate(set *agent.Metrics, config *tls.Config) {
	set.Gauge("agent_tls_certificate_not_after_timestamp_seconds", "When the certificate that clients see expires.", func() float64 {
		return float64(tlsconfig.NotAfter(config).Unix())
	})
}

// page returns the handler of /metrics on the listener, or nil without --metrics.
func (s *server) page() http.Handler {
	if !s.flags.Metrics {
		return nil
	}
	return s.metrics
}
