package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/test/rig"
)

// measureRegistry measures the registry itself: what an idle executor costs
// it, how long a harness takes to connect beside 2,000 of them, and what two
// processes on one NATS do compared with one.
func (b *bench) measureRegistry(ctx context.Context) error {
	pid := b.Registry.Process.Pid
	var before float64
	const first, n = 200, 2000 // the first ones bring what is there once
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	identity, err := noise.NewIdentity()
	if err != nil {
		return err
	}
	links := make([]*relay.Link, n)
	for i := range links {
		if i == first {
			before = memory(pid, "RssAnon")
		}
		registry, err := relay.NewRegistry(relay.RegistryConfig{
			BaseURL:       "http://" + b.Address,
			EnvironmentID: fmt.Sprintf("idle-%d", i),
			Tokens:        auth.APIKey(b.Executor),
		})
		if err != nil {
			return err
		}
		links[i] = relay.NewLink(relay.LinkConfig{Registry: registry, Identity: identity, Logger: slog.New(slog.DiscardHandler)})
		wg.Go(func() { _ = links[i].Run(running) })
		if i%50 == 49 { // a few at a time
			for _, l := range links[i-49 : i+1] {
				for !l.Ready() && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
		}
	}
	time.Sleep(3 * time.Second) // for the collector
	each := (memory(pid, "RssAnon") - before) / (n - first)
	fmt.Printf("%-44s %8.1f KiB   <= 40\n", "registry: one of 2,000 idle executors", each)

	d := b.harness(b.Site, "ours")
	var durations []time.Duration
	for range 300 {
		start := time.Now()
		conn, err := d.Dial(ctx)
		if err != nil {
			return err
		}
		durations = append(durations, time.Since(start))
		if err := conn.Close(); err != nil {
			return err
		}
	}
	fmt.Printf("%-44s %8.2f ms    <= 20\n", "registry: connect by a harness, p99", percentile(durations, 99)/1e3)
	stop()
	wg.Wait()
	return b.measureCluster(ctx)
}

// measureCluster compares a flood whose executor and harness are at the same
// process with one whose harness is at another, on the same NATS.
func (b *bench) measureCluster(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join(b.dir, "data", "nats.json"))
	if err != nil {
		return err
	}
	var nats struct{ URL, Token string }
	if err := json.Unmarshal(data, &nats); err != nil {
		return err
	}
	with := strings.Replace(nats.URL, "://", "://"+nats.Token+"@", 1)
	second := b.At(rig.FreeAddress(b.t))
	second.Data, second.Environ = "", append(os.Environ(), "REGISTRY_NATS_URL="+with)
	second.StartRegistry(b.t)
	var rates [2][]float64
	for range 3 {
		for i, site := range []*rig.Site{b.Site, second} {
			d := b.harness(site, "ours")
			c, err := client.Connect(ctx, client.Config{Dial: d.Dial})
			if err != nil {
				return err
			}
			const n = 256 << 20
			start := time.Now()
			if err := errors.Join(produce(ctx, c, n), c.Close()); err != nil {
				return err
			}
			rates[i] = append(rates[i], n/megabyte/time.Since(start).Seconds())
		}
	}
	one, two := median(rates[0]), median(rates[1])
	fmt.Printf("%-44s %8.1f MB/s, by two %.1f MB/s: %.0f %%   >= 50 %%\n", "registry: stdout by one process", one, two, 100*two/one)
	return nil
}
