package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A unit of work takes the reference time on the machine for which the budgets were chosen, if
// nothing else runs there. One unit is done in each pause, beside the tests. This costs 2 % of one
// processor.
const (
	unit      = 20_000_000 // steps
	reference = 40 * time.Millisecond
	pause     = 2 * time.Second
)

// pace measures how much longer than the reference this machine takes for a unit of work, from the
// start of a run to its end. The machine may be slower, others may use it, or the tests themselves
// may keep it busy. A limit in seconds of a quiet machine is multiplied by this factor, so that no
// test fails because of a busy machine.
type pace struct {
	alone   bool // one package runs: threads that wait for a processor are mostly those of other programs
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
func startPace(alone bool) *pace {
	p := &pace{alone: alone, stop: make(chan struct{})}
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
	if p.alone { // a unit after a pause is preferred by the scheduler, and says too little where many threads wait
		factor = max(factor, waiting()/float64(runtime.NumCPU()))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples = append(p.samples, sample{time.Now(), factor})
}

// waiting returns how many threads of this machine run or wait for a processor: the fourth field of
// /proc/loadavg (proc_loadavg(5)) before its slash.
func waiting() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 3 {
		threads, _, _ := strings.Cut(fields[3], "/")
		n, _ := strconv.Atoi(threads)
		return float64(n)
	}
	return 0
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

// between returns the mean of the factors between two times, including the samples next to these
// times.
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
