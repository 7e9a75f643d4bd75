package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// measureUnread floods 32 streams while nobody reads the executor's websocket
// for two seconds.
func measureUnread(ctx context.Context, e *executor) ([]figure, error) {
	const streams, each = 32, 16 << 20
	environment := e.name + "-proxied"
	var clients []*client.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range streams {
		c, err := e.bench.connect(ctx, environment)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	pid := e.proxied.pid
	before := memory(pid, "RssAnon")
	if err := forgetPeak(pid); err != nil {
		return nil, err
	}
	lost := 0.0
	var g errgroup.Group
	for i, c := range clients {
		g.Go(func() error {
			if err := produce(ctx, c, each); err != nil {
				return fmt.Errorf("stream %d: %w", i, err)
			}
			return nil
		})
	}
	time.Sleep(100 * time.Millisecond) // the floods are under way
	e.proxied.proxy.HoldUp()
	time.Sleep(2 * time.Second)
	grown := memory(pid, "RssAnon") - before
	e.proxied.proxy.Pass()
	if err := g.Wait(); err != nil {
		fmt.Println("lost:", err)
		lost = 1
	}
	return []figure{{"unread.growth", grown / 1024}, {"unread.lost", lost}}, nil
}

// measureDrop cuts the executor's websocket, twice, while a process talks, and
// takes the time until its output comes again. A client whose stream did not
// survive comes back to its session on a new one and reads what it missed.
func measureDrop(ctx context.Context, e *executor) ([]figure, error) {
	environment := e.name + "-proxied"
	c, err := e.bench.connect(ctx, environment)
	if err != nil {
		return nil, err
	}
	defer func() { c.Close() }()
	p, err := c.Start(ctx, params("/bin/sh", "-c", "while :; do echo tick; sleep 0.002; done"))
	if err != nil {
		return nil, err
	}
	process := p.ID()
	var durations [2]float64
	last := uint64(0)
	take := func(until time.Time) error { // the first output after a moment
		for event, err := range p.Events(ctx) {
			if err != nil {
				return err
			}
			last = event.Seq
			if time.Now().After(until) {
				return nil
			}
		}
		return errors.New("no more events")
	}
	for i := range durations {
		if p != nil {
			if err := take(time.Now().Add(300 * time.Millisecond)); err != nil {
				return nil, err
			}
		}
		e.proxied.proxy.Cut()
		start := time.Now()
		// What was under way before the cut does not count.
		err := error(&client.DisconnectedError{})
		if p != nil {
			err = take(start.Add(time.Millisecond))
		}
		if err != nil {
			p = nil
			session := c.SessionID()
			c.Close()
			resumed, seen, err := e.resume(ctx, environment, session, process, last)
			if err != nil {
				return nil, err
			}
			c, last = resumed, seen
		}
		durations[i] = time.Since(start).Seconds() * 1e3
	}
	return []figure{{"drop", durations[0]}, {"drop.again", durations[1]}}, nil
}

// resume comes back to a session and reads what its process wrote meanwhile.
func (e *executor) resume(ctx context.Context, environment, session, process string, after uint64) (*client.Client, uint64, error) {
	d := e.bench.harness(e.bench.Site, environment)
	for {
		c, err := client.Connect(ctx, client.Config{Dial: d.Dial, ResumeSessionID: session})
		if err == nil {
			wait := uint64(1000)
			var missed protocol.ReadResult
			err = c.Call(ctx, protocol.MethodProcessRead, &protocol.ReadParams{ProcessID: process, AfterSeq: &after, WaitMs: &wait}, &missed)
			return c, missed.NextSeq, err
		}
		if ctx.Err() != nil {
			return nil, 0, err
		}
		time.Sleep(time.Millisecond)
	}
}
