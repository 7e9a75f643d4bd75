package metrics

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Counter is a number that only grows.
type Counter struct{ n atomic.Uint64 }

// Add adds n, which must not be negative.
func (c *Counter) Add(n int) { c.n.Add(uint64(n)) }

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// durations is a histogram that counts durations in buckets.
type durations struct {
	bounds []time.Duration // the upper bound of each bucket except the last
	counts []atomic.Uint64
	sum    atomic.Int64 // ns
}

// observe counts a duration.
func (h *durations) observe(d time.Duration) {
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// kind is the type of a family.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
	summary   kind = "summary"
)

// family has all metrics with the same name.
type family struct {
	name, help string
	kind       kind
	write      []func(p *page) // one for each metric
}

// A Set has the metrics of one agent, and makes a page of them and of the metrics of the process.
// All methods may be called concurrently, except that metrics must be added before the first page.
type Set struct {
	started  time.Time
	families map[string]*family
	before   []func()

	// mu is held while metrics are added and while a page is made, so that many scrapes keep only one
	// processor busy.
	mu sync.Mutex
}

// NewSet returns a set that has only the metrics of the process. Its time becomes
// process_start_time_seconds, so it must be called when the program starts.
func NewSet() *Set { return &Set{started: time.Now(), families: map[string]*family{}} }

// Counter adds a counter. Its labels are names and values in turn.
func (s *Set) Counter(name, help string, labels ...string) *Counter {
	c := &Counter{}
	s.CountedBy(name, help, c.n.Load, labels...)
	return c
}

// CountedBy adds a counter whose value comes from a function.
func (s *Set) CountedBy(name, help string, value func() uint64, labels ...string) {
	s.add(name, help, counter, func(p *page) { p.sample(name, float64(value()), labels...) })
}

// Gauge adds a value that goes up and down.
func (s *Set) Gauge(name, help string, value func() float64, labels ...string) {
	s.add(name, help, gauge, func(p *page) { p.sample(name, value(), labels...) })
}

// histogram adds a histogram of durations with these upper bounds.
func (s *Set) histogram(name, help string, bounds []time.Duration, labels ...string) *durations {
	h := &durations{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
	s.add(name, help, histogram, func(p *page) { p.histogram(name, h, labels) })
	return h
}

// Before makes the set call f before each page. Calls never overlap.
func (s *Set) Before(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = append(s.before, f)
}

func (s *Set) add(name, help string, k kind, write func(*page)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[name]
	if f == nil {
		f = &family{name: name, help: help, kind: k}
		s.families[name] = f
	}
	f.write = append(f.write, write)
}

// ServeHTTP answers with the page. The caller has already checked who may ask.
func (s *Set) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text := s.page()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = io.Copy(w, bytes.NewReader(text)) // an error means that the scraper is gone
}

func (s *Set) page() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.before {
		f()
	}
	all := slices.AppendSeq(ofProcess(s.started), maps.Values(s.families))
	slices.SortFunc(all, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	var p page
	for _, f := range all {
		p.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + string(f.kind) + "\n")
		for _, write := range f.write {
			write(&p)
		}
	}
	return p.Bytes()
}

// page is a page that is being written.
type page struct{ bytes.Buffer }

// sample writes a line. The labels are names and values in turn.
func (p *page) sample(name string, value float64, labels ...string) {
	p.WriteString(name)
	sep := byte('{')
	for i := 0; i+1 < len(labels); i += 2 {
		p.WriteByte(sep)
		p.WriteString(labels[i] + "=" + strconv.Quote(labels[i+1]))
		sep = ','
	}
	if len(labels) > 0 {
		p.WriteByte('}')
	}
	p.WriteString(" " + strconv.FormatFloat(value, 'f', -1, 64) + "\n")
}

func (p *page) histogram(name string, h *durations, labels []string) {
	total := uint64(0)
	for i := range h.counts {
		total += h.counts[i].Load()
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = strconv.FormatFloat(h.bounds[i].Seconds(), 'f', -1, 64)
		}
		p.sample(name+"_bucket", float64(total), append(slices.Clip(labels), "le", bound)...)
	}
	p.sample(name+"_sum", time.Duration(h.sum.Load()).Seconds(), labels...)
	p.sample(name+"_count", float64(total), labels...)
}
