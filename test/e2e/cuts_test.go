package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/test/rig"
)

var (
	flagCuts     = flag.Int("cuts", 0, "how many connections of TestCuts fail; 0: a few (make cuts)")
	flagCutsSeed = flag.Uint64("cuts-seed", 0, "seed of TestCuts' choices; 0 takes one at random")
)

// TestCuts: clients work while one connection after the other fails under them, at any message and
// at any byte. Nothing of what processes print or are given is lost, comes twice or in another
// order; no command runs twice; exit codes are right; in the end no goroutine and no command is
// left.
func TestCuts(t *testing.T) {
	seed := *flagCutsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -cuts-seed %d", seed)
	t.Run("websocket", func(t *testing.T) {
		agent := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
		existing := goleak.IgnoreCurrent()
		address := strings.TrimPrefix(agent.line(t), "ws://")
		cuts(t, existing, seed, address, 6, max(*flagCuts, 300), 200_000, func(address string) (client.Config, error) {
			return client.URL("ws://" + address), nil
		})
	})
	t.Run("relay", func(t *testing.T) {
		s := rig.NewSite(t)
		s.Serve(t, "ci-0")
		existing := goleak.IgnoreCurrent()
		// Here each end comes back more slowly each time, so there are more of them.
		clients := 6
		if *flagCuts > 0 {
			clients = 60
		}
		cuts(t, existing, seed, s.Address, clients, max(*flagCuts, 15), 2_000_000, func(address string) (client.Config, error) {
			return remote.Registry("http://"+address, "ci-0", s.Harness)
		})
	})
}

// cuts has clients work behind a proxy each, until so many connections have failed in all.
func cuts(t *testing.T, existing goleak.Option, seed uint64, server string, clients, wanted int, most int64, config func(address string) (client.Config, error)) {
	t.Helper()
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	var proxies []*rig.Faulty
	var workers []*cutWorker
	var working sync.WaitGroup
	var enough atomic.Bool
	for i := range clients {
		proxy := rig.NewFaulty(t, server, seed+uint64(i), most)
		w := &cutWorker{
			random: rand.New(rand.NewPCG(seed+uint64(i), 2)), dir: t.TempDir(),
			connect: func() (client.Config, error) { return config(proxy.Address()) }, enough: &enough,
		}
		proxies, workers = append(proxies, proxy), append(workers, w)
		working.Go(func() {
			if err := w.work(ctx, proxy); err != nil {
				fail(fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	sum := func() (total int, kinds []int) {
		for _, p := range proxies {
			n, of := p.Faults()
			total += n
			kinds = append(kinds, of[:]...)
		}
		each := make([]int, len(kinds)/len(proxies))
		for i, n := range kinds {
			each[i%len(each)] += n
		}
		return total, each
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for total := 0; total < wanted && ctx.Err() == nil; total, _ = sum() {
		<-tick.C // the jobs have a bound
	}
	enough.Store(true)
	working.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	total, kinds := sum()
	jobs, lost, connections := 0, 0, 0
	for _, w := range workers {
		jobs, lost, connections = jobs+w.jobs, lost+w.lost, connections+w.connections
	}
	t.Logf("%d connections have failed, by kind %v; %d jobs, %d calls whose answer was lost, %d connections of sessions", total, kinds, jobs, lost, connections)
	for _, p := range proxies {
		p.Close()
	}
	goleak.VerifyNone(t, existing)
}

// A cutWorker is a client with one job after the other.
type cutWorker struct {
	random  *rand.Rand
	dir     string
	connect func() (client.Config, error)
	enough  *atomic.Bool

	client                  *client.Client
	jobs, lost, connections int
}

func (w *cutWorker) work(ctx context.Context, proxy *rig.Faulty) error {
	for late := time.Now().Add(patience); ; {
		cfg, err := w.connect()
		if err != nil {
			return err
		}
		w.client, err = client.Connect(ctx, cfg)
		if err == nil {
			break
		}
		if !client.Retryable(err) || ctx.Err() != nil || time.Now().After(late) {
			return fmt.Errorf("connecting: %w", err)
		}
	}
	defer w.client.Close()
	jobs := []func(context.Context) error{w.printed, w.echoed, w.files}
	for !w.enough.Load() {
		job, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the job takes too long"))
		err := jobs[w.random.IntN(len(jobs))](job)
		cancel()
		if err != nil {
			return err
		}
		w.jobs++
	}
	proxy.Heal()
	w.connections = w.client.Generation()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("what was started does not end"))
	defer cancel()
	// What was started and given up ends as well.
	for {
		running := 0
		list, err := w.client.Processes(ctx)
		if err != nil {
			if ctx.Err() == nil && (client.Retryable(err) || lostAnswer(err)) {
				continue
			}
			return err
		}
		for _, p := range list {
			if !p.Exited {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // the calls have a bound
	}
}

// lostAnswer tells whether a call failed because its connection did after it was sent.
func lostAnswer(err error) bool {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	return ok && lost.Sent && lost.Resume == nil
}

// start starts a script, again while the answer is lost. Each script that was begun leaves a line
// in a file of its own, so a second run of it shows.
func (w *cutWorker) start(ctx context.Context, script string, stdin bool) (*client.Process, func() error, error) {
	var files []string
	once := func() error {
		for i, file := range files {
			text, err := os.ReadFile(file)
			last := i == len(files)-1
			if err != nil && last || len(text) > 2 {
				return fmt.Errorf("attempt %d of %d to start has run %q, %v", i+1, len(files), text, err)
			}
		}
		return nil
	}
	for {
		file := filepath.Join(w.dir, "ran-"+strconv.FormatUint(w.random.Uint64(), 36))
		files = append(files, file)
		p, err := w.client.Spawn(ctx, client.Spec{
			Argv: []string{"sh", "-c", `echo x >>"$0"; ` + script, file}, Dir: "/", PipeStdin: stdin,
		})
		if !lostAnswer(err) {
			return p, once, err
		}
		w.lost++
	}
}

func (w *cutWorker) printed(ctx context.Context) error {
	count, code := 1+w.random.IntN(2000), w.random.IntN(100)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; [ $((i%%37)) = 0 ] && sleep 0.00%d; done; exit %d", count, 1+w.random.IntN(9), code)
	p, once, err := w.start(ctx, script, false)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	var got, want bytes.Buffer
	for i := range count {
		fmt.Fprintln(&want, i+1)
	}
	ended, err := p.CopyOutput(ctx, &got, &got)
	if err != nil || ended != code || !bytes.Equal(got.Bytes(), want.Bytes()) {
		return fmt.Errorf("%d lines and exit code %d: got %d bytes of %d, different from byte %d, exit code %d, %w",
			count, code, got.Len(), want.Len(), firstDifference(got.Bytes(), want.Bytes()), ended, err)
	}
	return once()
}

func (w *cutWorker) echoed(ctx context.Context) error {
	p, once, err := w.start(ctx, "cat; exit 3", true)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	var want bytes.Buffer
	var pieces [][]byte
	for i := range 1 + w.random.IntN(100) {
		piece := bytes.Repeat([]byte(strconv.Itoa(i)+"\n"), 1+w.random.IntN(200))
		pieces = append(pieces, piece)
		want.Write(piece)
	}
	written := make(chan error, 1)
	go func() {
		var err error
		for _, piece := range pieces {
			if err = p.Write(ctx, piece); err != nil {
				break
			}
		}
		written <- errors.Join(err, p.CloseStdin(ctx)) // or the command would wait for more
	}()
	var got bytes.Buffer
	code, err := p.CopyOutput(ctx, &got, &got)
	if err := errors.Join(err, <-written); err != nil || code != 3 || !bytes.Equal(got.Bytes(), want.Bytes()) {
		return fmt.Errorf("echo of %d writes: got %d bytes of %d, different from byte %d, exit code %d, %w",
			len(pieces), got.Len(), want.Len(), firstDifference(got.Bytes(), want.Bytes()), code, err)
	}
	return once()
}

func (w *cutWorker) files(ctx context.Context) error {
	path := filepath.Join(w.dir, "file-"+strconv.FormatUint(w.random.Uint64(), 36))
	data := make([]byte, w.random.IntN(30_000))
	for i := range data {
		data[i] = byte(w.random.Uint32())
	}
	files := w.client.FS(nil)
	for {
		err := files.WriteFile(ctx, path, data)
		if err == nil {
			break
		}
		if !lostAnswer(err) {
			return fmt.Errorf("writing a file: %w", err)
		}
		w.lost++
	}
	for {
		got, err := files.ReadFile(ctx, path)
		if err == nil && !bytes.Equal(got, data) {
			return fmt.Errorf("a file has %d bytes, want %d, different from byte %d", len(got), len(data), firstDifference(got, data))
		}
		if err == nil {
			return nil
		}
		if !lostAnswer(err) {
			return fmt.Errorf("reading a file: %w", err)
		}
		w.lost++
	}
}
