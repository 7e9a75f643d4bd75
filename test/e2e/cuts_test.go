package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

var (
	flagCuts     = flag.Int("cuts", 0, "how many connections of TestCuts fail; 0: a few (make cuts)")
	flagCutsSeed = flag.Uint64("cuts-seed", 0, "seed of the choices of TestCuts and TestSoak; 0: another one each night, else always the same")
)

// cutsSeed returns the seed of a test's choices.
func cutsSeed(t *testing.T) uint64 {
	t.Helper()
	seed := *flagCutsSeed
	switch {
	case seed == 0 && (*flagCuts > 0 || *flagSoak > 0 || rig.Runs(rig.Nightly)):
		seed = rand.Uint64()
	case seed == 0:
		seed = 1
	}
	t.Logf("repeat with -cuts-seed %d", seed)
	return seed
}

// TestCuts: clients work while one connection after the other fails under them, at any message and
// at any byte. Nothing of what processes print or are given is lost, comes twice or in another
// order; no command runs twice; exit codes are right; in the end no goroutine and no command is
// left.
func TestCuts(t *testing.T) {
	seed := cutsSeed(t)
	t.Run("websocket", func(t *testing.T) {
		wanted := 20
		if rig.Runs(rig.Merge) {
			wanted = 300
		}
		agent := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
		existing := goleak.IgnoreCurrent()
		c := &cutting{seed: seed, server: strings.TrimPrefix(agent.line(t), "ws://"), clients: 6, most: 200_000, config: byURL}
		c.run(t, existing, c.until(max(*flagCuts, wanted)))
	})
	t.Run("relay", func(t *testing.T) {
		if *flagCuts == 0 {
			rig.Tier(t, rig.Merge)
		}
		s := rig.NewSite(t)
		s.Serve(t, "ci-0")
		existing := goleak.IgnoreCurrent()
		// Here each end comes back more slowly each time, so there are more of them.
		clients := 6
		if *flagCuts > 0 {
			clients = 60
		}
		c := &cutting{seed: seed, server: s.Address, clients: clients, most: 2_000_000, config: func(address string) (client.Config, error) {
			return remote.Registry("http://"+address, "ci-0", s.Harness)
		}}
		c.run(t, existing, c.until(max(*flagCuts, 15)))
	})
}

func byURL(address string) (client.Config, error) { return client.URL("ws://" + address), nil }

// A cutting has clients work behind a proxy each, whose connections fail.
type cutting struct {
	seed    uint64
	server  string // its address
	clients int
	most    int64 // bytes that a connection carries
	config  func(address string) (client.Config, error)
	mark    string // in the environment of commands

	proxies []*rpctest.Faulty
	jobs    int // in the end
}

// until returns a function that waits until so many connections have failed.
func (c *cutting) until(wanted int) func(context.Context) {
	return func(ctx context.Context) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for c.faults() < wanted && ctx.Err() == nil {
			<-tick.C // the jobs have a bound
		}
	}
}

// faults returns how many connections have failed.
func (c *cutting) faults() (total int) {
	for _, p := range c.proxies {
		n, _ := p.Faults()
		total += n
	}
	return total
}

// run has the clients work until enough returns.
func (c *cutting) run(t *testing.T, existing goleak.Option, enough func(context.Context)) {
	t.Helper()
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	var workers []*cutWorker
	var working sync.WaitGroup
	var over atomic.Bool
	for i := range c.clients {
		seed := c.seed + uint64(i)
		proxy := rpctest.NewFaulty(t, c.server, seed, c.most)
		w := &cutWorker{cutting: c, random: rand.New(rand.NewPCG(seed, 2)), dir: t.TempDir(), proxy: proxy, over: &over}
		c.proxies, workers = append(c.proxies, proxy), append(workers, w)
		working.Go(func() {
			if err := w.work(ctx); err != nil {
				fail(fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	enough(ctx)
	over.Store(true)
	working.Wait()
	rig.Must(t, context.Cause(ctx))
	lost, connections := 0, 0
	for i, w := range workers {
		c.jobs, lost, connections = c.jobs+w.jobs, lost+w.lost, connections+w.connections
		total, kinds := c.proxies[i].Faults()
		t.Logf("client %d: %d connections have failed, by kind %v", i, total, kinds)
		c.proxies[i].Close()
	}
	t.Logf("%d jobs, %d calls whose answer was lost, %d connections of sessions", c.jobs, lost, connections)
	goleak.VerifyNone(t, existing)
}

// A cutWorker is a client with one job after the other.
type cutWorker struct {
	*cutting
	random *rand.Rand
	dir    string
	proxy  *rpctest.Faulty
	over   *atomic.Bool

	client                  *client.Client
	jobs, lost, connections int
}

func (w *cutWorker) work(ctx context.Context) error {
	for late := time.Now().Add(patience); ; {
		cfg, err := w.config(w.proxy.Address())
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
	jobs := []func(context.Context) error{w.printed, w.printed, w.echoed, w.terminated, w.files, w.blocks}
	for !w.over.Load() {
		n := w.random.IntN(len(jobs))
		job, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the job takes too long"))
		err := jobs[n](job)
		cancel()
		if err != nil {
			return fmt.Errorf("job %d: %w", n, err)
		}
		w.jobs++
	}
	w.proxy.Heal()
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

// lostAnswer reports whether a call failed because its connection did after it was sent.
func lostAnswer(err error) bool {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	return ok && lost.Sent && lost.Resume == nil
}

// persist makes a call again while its answer is lost.
func (w *cutWorker) persist(call func() error) error {
	for {
		err := call()
		if !lostAnswer(err) {
			return err
		}
		w.lost++
	}
}

// name returns a path that nobody else uses.
func (w *cutWorker) name(kind string) string {
	return filepath.Join(w.dir, kind+"-"+strconv.FormatUint(w.random.Uint64(), 36))
}

// start starts a script. The script leaves a line in a file of its own, so a second run of it shows.
func (w *cutWorker) start(ctx context.Context, script string, spec client.Spec) (p *client.Process, once func() error, err error) {
	file := w.name("ran")
	spec.Dir, spec.Env = "/", []string{"E2E_MARK=" + w.mark}
	spec.Argv = []string{"sh", "-c", `echo x >>"$0"; ` + script, file}
	if p, err = w.client.Spawn(ctx, spec); err != nil {
		err = fmt.Errorf("starting: %w", err)
	}
	return p, func() error {
		if text, err := os.ReadFile(file); string(text) != "x\n" {
			return fmt.Errorf("it has run %q, %v", text, err)
		}
		return nil
	}, err
}

// ended waits for the end of a process, which has to be as it should.
func ended(ctx context.Context, p *client.Process, code int, stdout, stderr []byte) error {
	var out, errs bytes.Buffer
	got, err := p.CopyOutput(ctx, &out, &errs)
	if got != code {
		err = errors.Join(err, fmt.Errorf("exit code %d, want %d", got, code))
	}
	return errors.Join(err, same(out.Bytes(), stdout), same(errs.Bytes(), stderr))
}

// same tells where bytes begin to differ.
func same(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	return fmt.Errorf("got %d bytes, want %d, different from byte %d", len(got), len(want), n)
}

// printed runs a script that writes numbered lines in bursts, sometimes to a terminal. It is less
// than an agent retains, so nothing may be missing however long the connection was away.
func (w *cutWorker) printed(ctx context.Context) error {
	var script strings.Builder
	var spec client.Spec
	var outputs [2][]byte
	line, end := 0, "\n"
	if w.random.IntN(4) == 0 {
		spec.TTY, end = &client.TTY{}, "\r\n"
	}
	for range 1 + w.random.IntN(5) {
		to, n := 0, 1+w.random.IntN([]int{3, 300, 5000}[w.random.IntN(3)])
		if spec.TTY == nil && w.random.IntN(4) == 0 {
			to = 1
		}
		fmt.Fprintf(&script, "seq %d %d >&%d; sleep 0.0%d; ", line+1, line+n, to+1, w.random.IntN(10))
		for range n {
			line++
			outputs[to] = fmt.Append(outputs[to], line, end)
		}
	}
	code := w.random.IntN(100)
	p, once, err := w.start(ctx, fmt.Sprintf("%sexit %d", &script, code), spec)
	if err != nil {
		return err
	}
	if err := ended(ctx, p, code, outputs[0], outputs[1]); err != nil {
		return fmt.Errorf("%s: %w", &script, err)
	}
	return once()
}

// echoed writes to a command that writes it back.
func (w *cutWorker) echoed(ctx context.Context) error {
	p, once, err := w.start(ctx, "cat; exit 3", client.Spec{PipeStdin: true})
	if err != nil {
		return err
	}
	var want []byte
	var pieces [][]byte
	for i := range 1 + w.random.IntN(100) {
		pieces = append(pieces, bytes.Repeat([]byte(strconv.Itoa(i)+"\n"), 1+w.random.IntN(200)))
		want = append(want, pieces[i]...)
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
	err = ended(ctx, p, 3, want, nil)
	if err := errors.Join(err, <-written); err != nil {
		return fmt.Errorf("echo of %d writes: %w", len(pieces), err)
	}
	return once()
}

// terminated kills a command, with a child in its group, once it has said something.
func (w *cutWorker) terminated(ctx context.Context) error {
	p, once, err := w.start(ctx, "sleep 1000 & echo up; exec sleep 1000", client.Spec{})
	if err != nil {
		return err
	}
	for event, err := range p.Events(ctx) {
		if err != nil {
			return err
		}
		if event.Kind == client.Output {
			if err := w.persist(func() error { return p.Terminate(ctx) }); err != nil {
				return fmt.Errorf("terminating: %w", err)
			}
		}
	}
	if code, err := p.Wait(ctx); code != 128+9 || err != nil {
		return fmt.Errorf("terminated, it ends with %d, %v", code, err)
	}
	return once()
}

func (w *cutWorker) bytes(most int) []byte {
	data := make([]byte, w.random.IntN(most))
	for i := range data {
		data[i] = byte(w.random.Uint32())
	}
	return data
}

// files writes, reads, renames and removes a file.
func (w *cutWorker) files(ctx context.Context) error {
	var path string
	data, files := w.bytes(30_000), w.client.FS(nil)
	err := w.persist(func() error {
		path = w.name("file") // what is lost may be carried out later
		return files.WriteFile(ctx, path, data)
	})
	if err != nil {
		return fmt.Errorf("writing a file: %w", err)
	}
	var got []byte
	err = w.persist(func() (err error) {
		got, err = files.ReadFile(ctx, path)
		return err
	})
	if err := errors.Join(err, same(got, data)); err != nil {
		return fmt.Errorf("reading a file: %w", err)
	}
	moved, before := path+"-moved", w.lost
	err = w.persist(func() error { return files.Rename(ctx, path, moved, false) })
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || w.lost == before) { // then the first one was carried out
		return fmt.Errorf("renaming a file: %w", err)
	}
	got, err = os.ReadFile(moved)
	if err := errors.Join(err, same(got, data)); err != nil {
		return fmt.Errorf("a renamed file: %w", err)
	}
	if err := w.persist(func() error { return files.RemoveAll(ctx, moved) }); err != nil {
		return fmt.Errorf("removing a file: %w", err)
	}
	if _, err := os.Lstat(moved); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a file that was removed: %w", err)
	}
	return nil
}

// blocks writes a file in blocks, another one each time that it is lost: an open file ends with
// its connection.
func (w *cutWorker) blocks(ctx context.Context) error {
	var all []byte
	blocks := make([][]byte, 1+w.random.IntN(8))
	for i := range blocks {
		blocks[i] = append(w.bytes(20_000), 'x')
		all = append(all, blocks[i]...)
	}
	for {
		path := w.name("blocks")
		err := w.write(ctx, path, blocks)
		if _, lost := errors.AsType[*client.DisconnectedError](err); lost && w.client.Err() == nil {
			w.lost++
			continue
		}
		got, readErr := os.ReadFile(path)
		if err := errors.Join(err, readErr, same(got, all)); err != nil {
			return fmt.Errorf("a file in %d blocks: %w", len(blocks), err)
		}
		return nil
	}
}

func (w *cutWorker) write(ctx context.Context, path string, blocks [][]byte) error {
	file, err := w.client.FS(nil).Open(ctx, path, protocol.OpenReplace)
	if err != nil {
		return err
	}
	defer file.Close()
	offset := int64(0)
	for _, block := range blocks {
		n, err := file.WriteAtContext(ctx, block, offset)
		if err != nil {
			return err
		}
		offset += int64(n)
	}
	return nil
}
