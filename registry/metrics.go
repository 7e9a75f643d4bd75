package registry

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/registry/internal/rendezvous"
)

// maxScrapes is how many requests for the metrics are answered at once; more get 503.
// They need no credential.
const maxScrapes = 4

// Bounds of the histograms' buckets, in seconds: an embedded store answers within a
// millisecond, and no request may take longer than apiTimeout.
var (
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	storeBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
)

// metrics count what the API and the rendezvous do, from the start on. No value contains
// an id or a secret. The methods may run concurrently.
type metrics struct {
	rendezvous.Metrics

	requests    *prometheus.CounterVec   // by operation and status
	requestTook *prometheus.HistogramVec // by operation
	storeTook   *prometheus.HistogramVec // by operation
	page        http.Handler
}

// newMetrics makes the metrics of a server, including those that are computed for each scrape.
func newMetrics(cfg Config, l *limits.Limiter, ready func(context.Context) error, log *slog.Logger) *metrics {
	defaults := l.Defaults()
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "registry_requests_total", Help: "Requests answered.",
		}, []string{"operation", "status"}),
		requestTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "registry_request_duration_seconds", Help: "Time that answers to API requests took.", Buckets: requestBuckets,
		}, []string{"operation"}),
		storeTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "registry_store_duration_seconds", Help: "Time that exchanges with the store took, including failed ones.", Buckets: storeBuckets,
		}, []string{"operation"}),
	}
	for _, operation := range []string{"register", "validate", "connect", "environments"} {
		m.requestTook.WithLabelValues(operation)
	}
	for _, operation := range []string{"read", "write"} {
		m.storeTook.WithLabelValues(operation)
	}
	cfg.Store.Observe(func(operation string, took time.Duration) {
		m.storeTook.WithLabelValues(operation).Observe(took.Seconds())
	})

	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "registry_build_info", Help: "Always 1. The labels hold the versions of the registry and of Go.",
	}, []string{"version", "goversion"})
	build.WithLabelValues(cfg.Version, runtime.Version()).Set(1)
	limit := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "registry_limit", Help: "Limits of a principal without limits of its own. A negative value is no limit.",
	}, []string{"name"})
	for name, value := range map[string]float64{
		"requests": defaults.Requests, "request-burst": float64(defaults.RequestBurst), "connections": float64(defaults.Connections),
		"streams": float64(defaults.Streams), "bytes": float64(defaults.Bytes),
	} {
		limit.WithLabelValues(name).Set(value)
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "registry_held_bytes", Help: "Bytes that are held for peers: frames that wait in lanes, for a harness or between processes, and large messages that are being read.",
	}, func() float64 { return float64(l.Usage("").Waiting) })
	mostHeld := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "registry_held_limit_bytes", Help: "Limit of registry_held_bytes.",
	}, func() float64 { return float64(l.MaxWaiting()) })
	up := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "registry_store_up", Help: "Whether the store can be written: 1 or 0.",
	}, func() float64 {
		if ready(context.Background()) != nil {
			return 0
		}
		return 1
	})

	r := prometheus.NewPedanticRegistry()
	r.MustRegister(m.requests, m.requestTook, m.storeTook, build, limit, held, mostHeld, up, &relayed{metrics: &m.Metrics},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if cfg.CertificateNotAfter != nil {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "registry_tls_certificate_not_after_timestamp_seconds", Help: "When the certificate that clients see expires.",
		}, func() float64 { return float64(cfg.CertificateNotAfter().Unix()) }))
	}
	m.page = promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	})
	return m
}

// answered counts an answer.
func (m *metrics) answered(operation string, status int) {
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
}

// took notes how long a request of the API has taken.
func (m *metrics) took(operation string, since time.Time) {
	m.requestTook.WithLabelValues(operation).Observe(time.Since(since).Seconds())
}

// relayed collects the counts of a rendezvous.
type relayed struct{ metrics *rendezvous.Metrics }

// A relayedValue is one of these counts.
type relayedValue struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	label string // its value; "" for none
	value func(*rendezvous.Metrics) float64
}

var (
	websockets = prometheus.NewDesc("registry_websockets", "Open rendezvous websockets.", []string{"role"}, nil)
	rejected   = prometheus.NewDesc("registry_rejected_upgrades_total", "Rendezvous upgrades refused.", []string{"reason"}, nil)

	relayedValues = []relayedValue{
		{websockets, prometheus.GaugeValue, "executor", func(m *rendezvous.Metrics) float64 { return float64(m.Executors.Load()) }},
		{websockets, prometheus.GaugeValue, "harness", func(m *rendezvous.Metrics) float64 { return float64(m.Harnesses.Load()) }},
		{plain("registry_streams", "Streams with a route."), prometheus.GaugeValue, "", func(m *rendezvous.Metrics) float64 { return float64(m.Streams.Load()) }},
		{plain("registry_waiting_streams", "Streams that wait for their harness to come back."), prometheus.GaugeValue, "", func(m *rendezvous.Metrics) float64 { return float64(m.Waiting.Load()) }},
		counter("registry_frames_total", "Frames relayed.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.Frames }),
		counter("registry_bytes_total", "Bytes relayed.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.Bytes }),
		counter("registry_hop_frames_total", "Frames relayed from or to another process.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.HopFrames }),
		counter("registry_hop_bytes_total", "Bytes relayed from or to another process.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.HopBytes }),
		counter("registry_resets_total", "Resets sent by the rendezvous.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.Resets }),
		counter("registry_memory_ended_total", "Streams and websockets that were ended because they held the most when memory was short.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.Relieved }),
		counter("registry_dropped_frames_total", "Frames that had nowhere to go.", func(m *rendezvous.Metrics) *atomic.Uint64 { return &m.Dropped }),
	}
)

func plain(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

func counter(name, help string, of func(*rendezvous.Metrics) *atomic.Uint64) relayedValue {
	return relayedValue{plain(name, help), prometheus.CounterValue, "", func(m *rendezvous.Metrics) float64 { return float64(of(m).Load()) }}
}

// Describe lists the metrics.
func (r *relayed) Describe(to chan<- *prometheus.Desc) {
	to <- rejected
	for i, v := range relayedValues {
		if i == 0 || v.desc != relayedValues[i-1].desc {
			to <- v.desc
		}
	}
}

// Collect reads the values.
func (r *relayed) Collect(to chan<- prometheus.Metric) {
	for _, v := range relayedValues {
		var labels []string
		if v.label != "" {
			labels = []string{v.label}
		}
		to <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value(r.metrics), labels...)
	}
	for reason, n := range r.metrics.Rejected() {
		to <- prometheus.MustNewConstMetric(rejected, prometheus.CounterValue, float64(n), reason)
	}
}
