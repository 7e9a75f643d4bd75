package rendezvous

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/registry/internal/notice"
)

const (
	// drainTime is how long Drain takes to close all websockets, if its context lasts.
	drainTime = 10 * time.Second
	// drainShare is the part of the context's time over which the closing of websockets
	// is spread. In the rest of the time the last websockets end.
	drainShare = 0.8
	// flushTime is the time in which waiting messages may be written before a websocket is
	// closed.
	flushTime = time.Second
)

// Drain lets executors and harnesses move to other servers. From now on upgrades are
// refused and Draining is true. Then the websockets are closed one by one, executors
// first, evenly over 10 s or over most of the time that ctx has. Streams that acknowledge
// go on at the servers to which their ends connect (remote.md 8.1). Drain returns nil when
// all websockets have ended, or an error with the cause of ctx if ctx ends before. Call
// Close after Drain. Drain may be called again.
func (rs *Routes) Drain(ctx context.Context) error {
	rs.draining.Store(true)
	rs.mu.Lock()
	if rs.drained == nil {
		rs.drained = make(chan struct{})
		if len(rs.sockets) == 0 {
			close(rs.drained)
		}
	}
	var executors, harnesses []*peer
	for p := range rs.sockets {
		if p.role == ticket.Executor {
			executors = append(executors, p)
		} else {
			harnesses = append(harnesses, p)
		}
	}
	rs.mu.Unlock()
	all := append(executors, harnesses...)

	started, total := time.Now(), spread(ctx)
	var dismissing sync.WaitGroup
	defer dismissing.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, p := range all {
		timer.Reset(time.Until(started.Add(total * time.Duration(i) / time.Duration(len(all)))))
		select {
		case <-ctx.Done():
			return fmt.Errorf("draining: %w", context.Cause(ctx))
		case <-timer.C:
		}
		dismissing.Go(func() { p.dismiss(ctx) })
	}
	select {
	case <-rs.drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("draining: %w", context.Cause(ctx))
	}
}

// spread returns the time over which Drain spreads the closing of websockets.
func spread(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(drainTime, time.Duration(float64(time.Until(deadline))*drainShare))
	}
	return drainTime
}

// dismiss closes the websocket once its waiting messages are written, or after flushTime.
func (p *peer) dismiss(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	_ = p.socket.Flush(ctx) // an end that does not read in time loses the messages
	p.kick("the server is draining")
}

// close ends all websockets at once, and then the hop to other servers. A second call
// only waits.
func (rs *Routes) close() error {
	rs.mu.Lock()
	if rs.closed {
		rs.mu.Unlock()
		rs.hop.wg.Wait()
		rs.serving.Wait()
		return nil
	}
	rs.closed = true
	all := slices.Collect(maps.Keys(rs.sockets))
	rs.mu.Unlock()
	rs.stop()
	for _, p := range all {
		_ = p.socket.Close() // never fails
	}
	rs.hop.wg.Wait() // first, because the hop may start goroutines that serving counts
	rs.serving.Wait()
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			m.endLocked(rt, "", nobody)
		}
		if m.away != nil {
			m.away.Stop()
		}
	})
	rs.hop.broadcast(notice.Notice{Kind: notice.Leave})
	return rs.hop.close()
}
