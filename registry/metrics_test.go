package registry

import (
	"bytes"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/registry/internal/rendezvous"
	"github.com/execagent/execagent/test/rig"
)

// metricsPage reads the metrics with the parser of Prometheus.
func metricsPage(t *testing.T, s *testServer) (map[string]*dto.MetricFamily, []byte) {
	t.Helper()
	status, header, body := s.do(t, "GET", "/metrics", "", nil)
	rig.Is(t, status, 200, "status of the metrics")
	kind := header.Get("Content-Type")
	rig.Is(t, strings.HasPrefix(kind, "text/plain; version=0.0.4"), true, "%s is the type of metrics", kind)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return rig.Value(parser.TextToMetricFamilies(bytes.NewReader(body))), body
}

// value finds the metric with these values of its labels, in the order of their names.
func value(t *testing.T, families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	for _, m := range families[name].GetMetric() {
		var has []string
		for _, pair := range m.GetLabel() {
			has = append(has, pair.GetValue())
		}
		if slices.Equal(has, labels) {
			switch families[name].GetType() {
			case dto.MetricType_COUNTER:
				return m.GetCounter().GetValue()
			case dto.MetricType_HISTOGRAM:
				return float64(m.GetHistogram().GetSampleCount())
			}
			return m.GetGauge().GetValue()
		}
	}
	t.Errorf("there is no %s%q", name, labels)
	return -1
}

// TestMetrics: the page is as Prometheus wants it, has the metrics that docs/remote.md names, and names nobody.
func TestMetrics(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	until := time.Now().Add(time.Hour)
	s := startServer(t, Config{Store: st, Version: "1.2.3", CertificateNotAfter: func() time.Time { return until }})
	key, id := createKey(t, st, ticket.Executor, "*", store.Limits{})
	s.mustRegister(t, key, "env", storetest.Key(t))
	s.metrics.Frames.Add(3)
	s.metrics.Refused(ticket.RejectExpired)
	s.wantStatus(t, "GET", "/nowhere", 404)
	families, page := metricsPage(t, s)
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"registry_websockets", []string{"executor"}, 0},
		{"registry_websockets", []string{"harness"}, 0},
		{"registry_frames_total", nil, 3},
		{"registry_requests_total", []string{"register", "200"}, 1},
		{"registry_requests_total", []string{"other", "404"}, 1},
		{"registry_request_duration_seconds", []string{"register"}, 1},
		{"registry_request_duration_seconds", []string{"connect"}, 0},
		{"registry_rejected_upgrades_total", []string{"expired"}, 1},
		{"registry_store_up", nil, 1},
		{"registry_limit", []string{"streams"}, 20_000},
		{"registry_tls_certificate_not_after_timestamp_seconds", nil, float64(until.Unix())},
	} {
		rig.Is(t, value(t, families, tt.name, tt.labels...), tt.want, "%s%q", tt.name, tt.labels)
	}
	for _, operation := range []string{"read", "write"} {
		rig.Is(t, value(t, families, "registry_store_duration_seconds", operation) == 0, false, "no %s is counted", operation)
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_start_time_seconds"} {
		rig.Is(t, families[name] == nil, false, "there is no %s", name)
	}
	if !bytes.Contains(page, []byte(`registry_build_info{goversion="go1.`)) || !bytes.Contains(page, []byte(`version="1.2.3"} 1`)) {
		t.Error("there is no version")
	}
	problems := rig.Value(promlint.New(bytes.NewReader(page)).Lint())
	rig.Is(t, len(problems), 0, "promlint: %v", problems)
	for _, private := range []string{key, id, "env"} {
		if slices.Contains(strings.FieldsFunc(string(page), func(r rune) bool { return strings.ContainsRune(" {}=\"\n", r) }), private) {
			t.Errorf("metrics tell %q", private)
		}
	}

	text := rig.Value(os.ReadFile("../docs/remote.md"))
	for _, name := range regexp.MustCompile("registry_[a-z_]+").FindAllString(string(text), -1) {
		rig.Is(t, families[name] == nil, false, "docs/remote.md names %s, which is not on the page", name)
	}
}

// TestRelayedIsAll: each value that a rendezvous counts is on the page.
func TestRelayedIsAll(t *testing.T) {
	t.Parallel()
	n := 0
	for _, field := range reflect.VisibleFields(reflect.TypeFor[rendezvous.Metrics]()) {
		if field.IsExported() {
			n++
		}
	}
	rig.Is(t, n, len(relayedValues), "values that a rendezvous counts")
}

// TestMetricsInDocs: the table of docs/metrics.md has what the page has, and nothing else.
func TestMetricsInDocs(t *testing.T) {
	t.Parallel()
	text := rig.Value(os.ReadFile("../docs/metrics.md"))
	_, section, _ := strings.Cut(string(text), "\n## Registry")
	s := startServer(t, Config{CertificateNotAfter: time.Now})
	s.do(t, "GET", "/nowhere", "", nil)     // so that requests have been counted
	s.metrics.Refused(ticket.RejectExpired) // and a refused upgrade
	families, _ := metricsPage(t, s)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| (.*?) ?\\| .+ \\|$").FindAllStringSubmatch(section, -1) {
		name, kind, labels := row[1], row[2], row[3]
		documented[name] = true
		family := families[name]
		if family == nil {
			t.Errorf("docs/metrics.md has %s, and the page has not", name)
			continue
		}
		rig.Is(t, strings.ToLower(family.GetType().String()), kind, "%s in docs/metrics.md", name)
		for _, pair := range family.GetMetric()[0].GetLabel() {
			rig.Is(t, strings.Contains(labels, "`"+pair.GetName()+"`"), true, "docs/metrics.md has %v of %s", pair, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		ours := strings.HasPrefix(name, "registry_")
		rig.Is(t, ours && !documented[name], false, "docs/metrics.md has no row for %s: %s", name, families[name].GetHelp())
	}
}
