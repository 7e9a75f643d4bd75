package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

type figure struct {
	metric string
	value  float64
}

type scenario struct {
	name    string
	measure func(context.Context, *executor) ([]figure, error)
}

var scenarios = []scenario{
	{"memory", measureMemory}, // before others leave their garbage
	{"handshake", measureHandshake},
	{"status", measureStatus},
	{"true", measureTrue},
	{"echo", measureEcho},
	{"stdout", measureStdout},
	{"stdin", measureStdin},
	{"file", measureFile},
	{"streams", measureStreams},
	{"unread", measureUnread},
	{"drop", measureDrop},
}

const megabyte = 1e6

// with runs f with a client of its own.
func (e *executor) with(ctx context.Context, environment string, f func(*client.Client) error) error {
	c, err := e.bench.connect(ctx, environment)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

func params(argv ...string) protocol.StartParams {
	return protocol.StartParams{Argv: argv, Cwd: protocol.NewPathURI("/")}
}

// measureHandshake dials streams one after another: the registry's connect,
// the websocket and the handshake with its validation, until initialize is
// answered.
func measureHandshake(ctx context.Context, e *executor) ([]figure, error) {
	const n = 100
	d := e.bench.harness(e.bench.Site, e.name)
	var durations []time.Duration
	before := rig.CPU(e.pid)
	for range n {
		start := time.Now()
		c, err := client.Connect(ctx, client.Config{Dial: d.Dial})
		if err != nil {
			return nil, err
		}
		durations = append(durations, time.Since(start))
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	used := rig.CPU(e.pid) - before
	return []figure{
		{"handshake", percentile(durations, 50)},
		{"handshake.cpu", float64(used.Microseconds()) / n},
	}, nil
}

func measureStatus(ctx context.Context, e *executor) (figures []figure, err error) {
	err = e.with(ctx, e.name, func(c *client.Client) error {
		var durations []time.Duration
		for range 3000 {
			start := time.Now()
			if _, err := c.Status(ctx); err != nil {
				return err
			}
			durations = append(durations, time.Since(start))
		}
		const each = 1500
		start := time.Now()
		var g errgroup.Group
		for range 64 {
			g.Go(func() error {
				for range each {
					if _, err := c.Status(ctx); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		figures = []figure{{"status", percentile(durations, 50)}, {"status64", 64 * each / time.Since(start).Seconds()}}
		return nil
	})
	return figures, err
}

func runTrue(ctx context.Context, c *client.Client) error {
	p, err := c.Start(ctx, params("/bin/true"))
	if err != nil {
		return err
	}
	if _, err := p.Wait(ctx); err != nil {
		return err
	}
	p.Close()
	return nil
}

func measureTrue(ctx context.Context, e *executor) (figures []figure, err error) {
	err = e.with(ctx, e.name, func(c *client.Client) error {
		var durations []time.Duration
		for range 100 {
			start := time.Now()
			if err := runTrue(ctx, c); err != nil {
				return err
			}
			durations = append(durations, time.Since(start))
		}
		const each = 15
		start := time.Now()
		var g errgroup.Group
		for range 16 {
			g.Go(func() error {
				for range each {
					if err := runTrue(ctx, c); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		figures = []figure{{"true", percentile(durations, 50)}, {"true16", 16 * each / time.Since(start).Seconds()}}
		return nil
	})
	return figures, err
}

// echo types n keys into cat in a terminal, and waits for each to come back.
func echo(ctx context.Context, c *client.Client, n int) ([]time.Duration, error) {
	start := params("/bin/sh", "-c", "stty -icanon min 1 -echo; echo ready; exec cat")
	start.TTY = true
	p, err := c.Start(ctx, start)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var durations []time.Duration
	var sent time.Time
	var seen []byte
	for event, err := range p.Events(ctx) {
		switch {
		case err != nil:
			return nil, err
		case event.Kind != client.Output:
			return nil, fmt.Errorf("cat ended: %s", seen)
		}
		if !bytes.Contains(seen, []byte("ready")) {
			seen = append(seen, event.Data...)
			if !bytes.Contains(seen, []byte("ready")) {
				continue
			}
		} else if !sent.IsZero() && len(event.Data) > 0 && event.Data[0] == 'x' {
			if durations = append(durations, time.Since(sent)); len(durations) == n {
				return durations, p.Terminate(ctx)
			}
		} else {
			continue
		}
		sent = time.Now()
		if err := p.Write(ctx, []byte("x")); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no more events")
}

func measureEcho(ctx context.Context, e *executor) (figures []figure, err error) {
	err = e.with(ctx, e.name, func(c *client.Client) error {
		alone, err := echo(ctx, c, 1000)
		if err != nil {
			return err
		}
		figures = append(figures, figure{"echo", percentile(alone, 50)})
		return e.with(ctx, e.name, func(other *client.Client) error {
			flood, err := other.Start(ctx, params("/bin/sh", "-c", "exec cat /dev/zero"))
			if err != nil {
				return err
			}
			// Its output is read, and thrown away: the relay is to be full.
			drained := make(chan struct{})
			reading, cancel := context.WithCancel(ctx)
			go func() {
				defer close(drained)
				for range flood.Events(reading) {
				}
			}()
			beside, err := echo(ctx, c, 500)
			cancel()
			<-drained
			flood.Close()
			if err != nil {
				return err
			}
			figures = append(figures, figure{"echo.flood", percentile(beside, 50)}, figure{"echo.flood.p99", percentile(beside, 99)})
			return nil
		})
	})
	return figures, err
}

// produce runs a command that writes n bytes and counts them.
func produce(ctx context.Context, c *client.Client, n int) error {
	p, err := c.Start(ctx, params("/bin/sh", "-c", fmt.Sprintf("exec head -c %d /dev/zero", n)))
	if err != nil {
		return err
	}
	defer p.Close()
	got := 0
	for event, err := range p.Events(ctx) {
		if err != nil {
			return err
		}
		got += len(event.Data)
	}
	if got != n {
		return fmt.Errorf("%d bytes came of %d", got, n)
	}
	return nil
}

func measureStdout(ctx context.Context, e *executor) (figures []figure, err error) {
	const n = 512 << 20
	err = e.with(ctx, e.name, func(c *client.Client) error {
		if err := forgetPeak(e.pid); err != nil {
			return err
		}
		before, start := rig.CPU(e.pid), time.Now()
		if err := produce(ctx, c, n); err != nil {
			return err
		}
		figures = []figure{
			{"stdout", n / megabyte / time.Since(start).Seconds()},
			{"stdout.cpu", (rig.CPU(e.pid) - before).Seconds() / (n / 1e9)},
			{"stdout.peak", memory(e.pid, "VmHWM") / 1024},
		}
		return nil
	})
	return figures, err
}

func measureStdin(ctx context.Context, e *executor) (figures []figure, err error) {
	const block, each = 256 << 10, 64
	err = e.with(ctx, e.name, func(c *client.Client) error {
		spec := params("/bin/sh", "-c", "exec cat >/dev/null")
		spec.PipeStdin = true
		p, err := c.Start(ctx, spec)
		if err != nil {
			return err
		}
		defer p.Close()
		go p.Discard()
		data := make([]byte, block)
		start := time.Now()
		var g errgroup.Group
		for range 8 {
			g.Go(func() error {
				for range each {
					if err := p.Write(ctx, data); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		figures = []figure{{"stdin8", 8 * each * block / megabyte / time.Since(start).Seconds()}}
		return p.Terminate(ctx)
	})
	return figures, err
}

func measureFile(ctx context.Context, e *executor) (figures []figure, err error) {
	const block, blocks = 1 << 20, 256
	path := filepath.Join(e.bench.dir, "file")
	if err := os.WriteFile(path, make([]byte, block*blocks), 0o600); err != nil {
		return nil, err
	}
	err = e.with(ctx, e.name, func(c *client.Client) error {
		f, err := c.FS(nil).Open(ctx, path, protocol.OpenRead)
		if err != nil {
			return err
		}
		start := time.Now()
		var g errgroup.Group
		for worker := range 8 {
			g.Go(func() error {
				buffer := make([]byte, block)
				for i := worker; i < blocks; i += 8 {
					if _, err := f.ReadAt(buffer, int64(i)*block); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		figures = []figure{{"file8", block * blocks / megabyte / time.Since(start).Seconds()}}
		return f.Close()
	})
	return figures, err
}

// measureMemory opens streams with a process each.
func measureMemory(ctx context.Context, e *executor) ([]figure, error) {
	const n = 100
	before := memory(e.pid, "RssAnon")
	var clients []*client.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range n {
		c, err := e.bench.connect(ctx, e.name)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
		p, err := c.Start(ctx, params("/bin/sleep", "600"))
		if err != nil {
			return nil, err
		}
		go p.Discard()
	}
	figures := []figure{{"stream.memory", (memory(e.pid, "RssAnon") - before) / n}}
	for _, c := range clients {
		list, err := c.Processes(ctx)
		if err != nil {
			break // the reference has no list: the session's end kills them
		}
		for _, p := range list {
			_ = c.Call(ctx, protocol.MethodProcessTerminate, &protocol.TerminateParams{ProcessID: p.ProcessID}, nil)
		}
	}
	return figures, nil
}

func measureStreams(ctx context.Context, e *executor) ([]figure, error) {
	const streams, each = 32, 8 << 20
	var clients []*client.Client
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range streams {
		c, err := e.bench.connect(ctx, e.name)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	if err := forgetPeak(e.pid); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var ends []time.Duration
	start := time.Now()
	var g errgroup.Group
	for _, c := range clients {
		g.Go(func() error {
			err := produce(ctx, c, each)
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(start))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return []figure{
		{"streams32", streams * each / megabyte / ends[streams-1].Seconds()},
		{"streams32.fairness", ends[streams-1].Seconds() / ends[0].Seconds()},
		{"streams32.peak", memory(e.pid, "VmHWM") / 1024},
	}, nil
}
