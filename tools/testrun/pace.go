package main

import (
	"sync"
	"time"
)

// A unit of work takes a reference time on the machine that the budgets were chosen for, when
// nothing else runs there. Each pause a unit is done, beside the tests: 2 % of one processor.
const (
	unit      = 20_000_000 // steps
	reference = 40 * time.Millisecond
	pause     = 2 * time.Second
)

// pace measures how much longer than the reference this machine takes for a unit of work, from
// the start of a run to its end: because the machine is slower, because others use it, or because
// the tests themselves keep it busy. A limit in seconds of a quiet machine is multiplied by it, so
// that a busy machine fails no test.
type pace struct {
	stop    chan struct{}
	stopped sync.WaitGroup

	mu      sync.Mutex // guards samples
	samples []sample
}

type sample struct {
	at     time.Time
	factor float64 // at least 1
}

// startPace takes the first sample and goes on in a goroutine until Close.
func startPace() *pace {
	p := &pace{stop: make(chan struct{})}
	p.measure()
	p.stopped.Go(func() {
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.measure()
			case <-p.stop:
				return
			}
		}
	})
	return p
}

// Close takes the last sample.
func (p *pace) Close() {
	close(p.stop)
	p.stopped.Wait()
	p.measure()
}

func (p *pace) measure() {
	began := time.Now()
	work(unit)
	factor := max(1, float64(time.Since(began))/float64(reference))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples = append(p.samples, sample{time.Now(), factor})
}

// work needs one processor and no memory.
//
//go:noinline
func work(steps int) (x uint64) {
	x = 88172645463325252
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// between returns the mean of the factors from a moment on until another, with the samples next to
// these moments.
func (p *pace) between(from, to time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum, n := 0.0, 0
	for i, s := range p.samples {
		last := i+1 == len(p.samples)
		if (last || !p.samples[i+1].at.Before(from)) && (i == 0 || !p.samples[i-1].at.After(to)) {
			sum, n = sum+s.factor, n+1
		}
	}
	return sum / float64(n)
}
