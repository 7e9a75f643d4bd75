package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/relay"
)

// fleetSize is how many executors come back at once.
const fleetSize = 3000

// measureFleet kills the registry under a fleet of executors and measures how
// long they take to come back, from the moment at which it is ready again. The
// executors are the agent's own links, with its pace, in this process.
func (b *bench) measureFleet(ctx context.Context, away time.Duration, must string) error {
	running, stop := context.WithCancel(ctx)
	var links sync.WaitGroup
	defer links.Wait()
	defer stop()
	f := newFleet(fleetSize)
	identity, err := noise.NewIdentity()
	if err != nil {
		return err
	}
	for i := range fleetSize {
		registry, err := relay.NewRegistry(relay.RegistryConfig{
			BaseURL:       "http://" + b.Address,
			EnvironmentID: fmt.Sprintf("fleet-%d", i),
			Tokens:        auth.APIKey(b.Executor),
		})
		if err != nil {
			return err
		}
		link := relay.NewLink(relay.LinkConfig{Registry: registry, Identity: identity, Logger: slog.New(&arrivals{fleet: f, number: i})})
		links.Go(func() {
			defer registry.Close()
			_ = link.Run(running) // an error shows as one that does not come
		})
		if i%50 == 49 { // a few at a time
			if err := f.wait(ctx, i+1); err != nil {
				return err
			}
		}
	}

	f.begin()
	if err := b.restartRegistry(ctx, away); err != nil {
		return err
	}
	ready := time.Now()
	if err := f.wait(ctx, fleetSize); err != nil {
		return err
	}
	back := f.since(ready)
	fmt.Printf("%-44s half %.1f s, 99 %% %.1f s, all %.1f s   %s; longest pause chosen %.1f s\n",
		fmt.Sprintf("fleet: %d executors, registry away for %v", fleetSize, away),
		percentile(back, 50)/1e6, percentile(back, 99)/1e6, percentile(back, 100)/1e6, must, f.longest.Seconds())
	return nil
}

// restartRegistry kills the registry and starts it after a while, on the same
// address and data. It returns when it says that it is ready.
func (b *bench) restartRegistry(ctx context.Context, away time.Duration) error {
	b.Registry.Kill(b.t)
	select {
	case <-time.After(away):
	case <-ctx.Done():
		return ctx.Err()
	}
	b.StartRegistry(b.t)
	return nil
}

// fleet keeps who is connected, as the logs of the links tell.
type fleet struct {
	mu      sync.Mutex // protects the fields below
	came    []time.Time
	here    int
	longest time.Duration // pause before an attempt
	changed chan struct{} // closed at the next arrival
}

func newFleet(n int) *fleet {
	return &fleet{came: make([]time.Time, n), changed: make(chan struct{})}
}

// begin forgets who has come.
func (f *fleet) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.came)
	f.here, f.longest = 0, 0
}

// wait returns when n have come.
func (f *fleet) wait(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		here, changed := f.here, f.changed
		f.mu.Unlock()
		if here >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d executors are connected: %w", here, n, ctx.Err())
		}
	}
}

// since returns how long after a moment each has come; one that came before has 0.
func (f *fleet) since(moment time.Time) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []time.Duration
	for _, came := range f.came {
		all = append(all, max(0, came.Sub(moment)))
	}
	slices.Sort(all)
	return all
}

// arrivals is the log of one link.
type arrivals struct {
	fleet  *fleet
	number int
}

func (a *arrivals) Enabled(context.Context, slog.Level) bool { return true }
func (a *arrivals) WithAttrs([]slog.Attr) slog.Handler       { return a }
func (a *arrivals) WithGroup(string) slog.Handler            { return a }

// Handle notes a connection and the pauses before one.
func (a *arrivals) Handle(_ context.Context, record slog.Record) error {
	f := a.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if record.Message == "connected to the rendezvous" {
		if f.came[a.number].IsZero() {
			f.here++
		}
		f.came[a.number] = record.Time
		close(f.changed)
		f.changed = make(chan struct{})
	}
	record.Attrs(func(attr slog.Attr) bool {
		if attr.Key == "delay" {
			f.longest = max(f.longest, attr.Value.Duration())
		}
		return true
	})
	return nil
}
