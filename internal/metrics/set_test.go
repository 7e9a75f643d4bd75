package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestPage: the page has each family once, with all its metrics, ordered by name.
func TestPage(t *testing.T) {
	t.Parallel()
	s := NewSet()
	h := s.histogram("agent_h_seconds", "Times.", []time.Duration{time.Millisecond, time.Second}, "m", "x")
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, time.Hour} {
		h.observe(d)
	}
	a := s.Counter("agent_c_total", "Things.", "k", "a")
	looks := 0
	s.Before(func() { looks++ })
	s.Gauge("agent_g", "Looks.", func() float64 { return float64(looks) })
	s.Counter("agent_c_total", "Things.", "k", `b"\`).Inc()
	a.Add(1 << 40)
	s.page()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, nil)
	var own strings.Builder
	for line := range strings.Lines(answer.Body.String()) {
		if strings.Contains(line, "agent_") {
			own.WriteString(line)
		}
	}
	want := `# HELP agent_c_total Things.
# TYPE agent_c_total counter
agent_c_total{k="a"} 1099511627776
agent_c_total{k="b\"\\"} 1
# HELP agent_g Looks.
# TYPE agent_g gauge
agent_g 2
# HELP agent_h_seconds Times.
# TYPE agent_h_seconds histogram
agent_h_seconds_bucket{m="x",le="0.001"} 2
agent_h_seconds_bucket{m="x",le="1"} 3
agent_h_seconds_bucket{m="x",le="+Inf"} 4
agent_h_seconds_sum{m="x"} 3600.002000001
agent_h_seconds_count{m="x"} 4
`
	rig.Same(t, "metrics", want, own.String())
}

// TestAgentLabels: whatever an agent is told, its metrics stay those of the start.
func TestAgentLabels(t *testing.T) {
	t.Parallel()
	s := NewSet()
	a := NewAgent(s, []string{"fs/open"}, nil)
	names := func() (all []string) {
		for line := range strings.Lines(string(s.page())) {
			name, _, _ := strings.Cut(line, " ")
			all = append(all, name)
		}
		return all
	}
	before := names()
	a.Answered("fs/open", time.Second, nil)
	a.Answered("fs/"+strings.Repeat("x", 1000), time.Second, protocol.Errorf(-1, "text"))
	a.Answered("", 0, protocol.InvalidRequest("text"))
	for _, code := range []int{-1, 0, 1, 128, 129, 192, 193, 1 << 20} {
		a.Exited(code, nil)
	}
	a.Started(nil, time.Hour)
	rig.Same(t, "names", before, names())
	page := string(s.page())
	for _, line := range []string{
		`agent_request_duration_seconds_count{method="fs/open"} 1`, `agent_request_duration_seconds_count{method="other"} 1`,
		`agent_request_errors_total{code="other"} 1`, `agent_request_errors_total{code="-32600"} 1`,
		`agent_process_exits_total{kind="code0"} 1`, `agent_process_exits_total{kind="code"} 4`,
		`agent_process_exits_total{kind="signal"} 2`, `agent_process_exits_total{kind="unknown"} 1`,
	} {
		rig.Is(t, strings.Contains(page, line+"\n"), true, "the page has %s", line)
	}
}

// BenchmarkAnswered measures what a request is counted with.
func BenchmarkAnswered(b *testing.B) {
	a := NewAgent(NewSet(), []string{"fs/open"}, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a.Answered("fs/open", time.Millisecond, nil)
		}
	})
}

func BenchmarkNewAgent(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewAgent(NewSet(), []string{"fs/open", "fs/close"}, nil)
	}
}

func BenchmarkPage(b *testing.B) {
	s := NewSet()
	NewAgent(s, []string{"fs/open", "fs/close"}, nil)
	for b.Loop() {
		s.page()
	}
}
