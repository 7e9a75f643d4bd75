package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/rpc"
)

// A Scenario is what a client has to do.
type Scenario struct {
	Name  string   `json:"name"`
	About string   `json:"about"`
	Needs []string `json:"needs"`
	Over  []string `json:"over"`
	Steps []step   `json:"steps"`
}

type step struct {
	Do         string         `json:"do"`
	On         string         `json:"on"`
	With       map[string]any `json:"with"`
	As         string         `json:"as"`
	See        any            `json:"see"`
	Fails      map[string]any `json:"fails"`
	Background bool           `json:"background"`
}

// Load reads all scenarios of a folder.
func Load(folder fs.FS) (all []*Scenario, err error) {
	files, err := fs.Glob(folder, "*.json")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, err
		}
		var file struct {
			About     string
			Scenarios []*Scenario
		}
		in := json.NewDecoder(bytes.NewReader(text))
		in.DisallowUnknownFields() // a member that nobody reads would check nothing
		if err := in.Decode(&file); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, file.Scenarios...)
	}
	return all, nil
}

// ErrLacks is in the chain of an error that says why a scenario cannot be run.
var ErrLacks = errors.New("not for this client and agent")

// ErrUnknown is in the chain of an error about words of a scenario that are unknown here. No step may expect it,
// because words that nobody reads would check nothing.
var ErrUnknown = errors.New("unknown to the runner of the Go client")

// Runs reports whether a scenario is for a way to an agent: ws, unix, stdio or relay.
func (s *Scenario) Runs(way string) bool {
	if way == "relay" {
		way = "ws"
	}
	return s.Over == nil || slices.Contains(s.Over, way)
}

// A runner runs one scenario.
type runner struct {
	client *client.Client
	line   *line
	values map[string]any
	tasks  sync.WaitGroup
	last   map[string]*task // that was begun, of each handle
	// unknown is an ErrUnknown of a task. It counts also if no step awaits the task.
	unknown atomic.Pointer[error]
}

// Run runs a scenario with a client of its own. dir and here are empty folders of this machine, and
// port is one at which [Answer] serves.
func Run(ctx context.Context, s *Scenario, config client.Config, dir, here string, port int) error {
	r := &runner{line: &line{dial: config.Dial}, last: map[string]*task{}, values: map[string]any{
		"dir": dir, "here": here, "http": fmt.Sprintf("http://127.0.0.1:%d", port), "port": port,
	}}
	config.Dial = r.line.connect
	r.line.ends = slices.ContainsFunc(s.Steps, func(one step) bool { return one.With["at"] != nil })
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	if r.client, err = client.Connect(ctx, config); err != nil {
		return err
	}
	err = r.run(ctx, s)
	_ = r.client.Close() // also ends what tasks read
	stop()
	r.tasks.Wait()
	if unknown := r.unknown.Load(); unknown != nil {
		return *unknown
	}
	return err
}

// A line is how the client connects. It can be cut.
type line struct {
	dial func(context.Context) (rpc.Conn, error)
	ends bool         // cutAt may end it
	shut sync.RWMutex // nobody connects while it is locked

	mu    sync.Mutex
	conn  rpc.Conn
	at    string // the message that the connection ends at, see cutAt; "": none
	until string // nobody connects until this file exists; "": there is none to wait for
}

func (l *line) connect(ctx context.Context) (rpc.Conn, error) {
	l.shut.RLock()
	defer l.shut.RUnlock()
	l.mu.Lock()
	until := l.until
	l.mu.Unlock()
	for until != "" {
		if _, err := os.Stat(until); err == nil {
			break
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	conn, err := l.dial(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	if err == nil && l.ends {
		conn = ending{conn, l}
	}
	return conn, err
}

// cutAt ends the connection at the next message: of the client ("request"), or of the agent ("answer" and "half",
// because the Go client sees only whole messages). The message does not arrive.
func (l *line) cutAt(at, until string) error {
	if !slices.Contains([]string{"request", "answer", "half"}, at) {
		return fmt.Errorf("%w: cut at %q", ErrUnknown, at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.until = at, until
	return nil
}

// endsAt reports whether the connection ends at this message, and forgets that.
func (l *line) endsAt(request bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == "" || (l.at == "request") != request {
		return false
	}
	l.at = ""
	return true
}

// ending is a connection of a line that cutAt may end.
type ending struct {
	rpc.Conn
	line *line
}

func (e ending) Write(message []byte) error {
	if e.line.endsAt(true) {
		return e.Conn.Close() // to the client it was sent
	}
	return e.Conn.Write(message)
}

func (e ending) Read() ([]byte, error) {
	message, err := e.Conn.Read()
	if err == nil && e.line.endsAt(false) {
		return nil, errors.Join(io.ErrUnexpectedEOF, e.Conn.Close())
	}
	return message, err
}

// cut cuts the connection, and lets nobody connect for a while.
func (l *line) cut(ctx context.Context, d time.Duration) error {
	l.shut.Lock()
	defer l.shut.Unlock()
	l.mu.Lock()
	err := l.conn.Close()
	l.mu.Unlock()
	return errors.Join(err, sleep(ctx, d))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs all steps.
func (r *runner) run(ctx context.Context, s *Scenario) error {
	info, err := r.client.Info(ctx)
	if err != nil {
		return err
	}
	var flags map[string]bool
	text, err := json.Marshal(info.Capabilities)
	if err := errors.Join(err, json.Unmarshal(text, &flags)); err != nil {
		return err
	}
	for _, flag := range s.Needs {
		if !flags[flag] {
			return fmt.Errorf("%w: the agent has no %s", ErrLacks, flag)
		}
	}
	for i, one := range s.Steps {
		if err := r.step(ctx, one); err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, one.Do, err)
		}
	}
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	if r.line.at != "" {
		return errors.New("no message came at which to cut")
	}
	return nil
}

// A task is a step that was begun and not awaited.
type task struct {
	done   chan struct{}
	result any
	err    error
}

func (r *runner) step(ctx context.Context, s step) error {
	arguments, _ := r.fill(s.With).(map[string]any)
	on, known := r.values[s.On]
	if s.On != "" && !known {
		return fmt.Errorf("%w: handle %s", ErrUnknown, s.On)
	}
	work := func() (any, error) { return r.do(ctx, s.Do, on, &with{values: arguments}) }
	if s.Background {
		t, before := &task{done: make(chan struct{})}, r.last[s.On]
		r.tasks.Go(func() {
			defer close(t.done)
			if before != nil {
				<-before.done // the steps of one handle keep their order
			}
			if t.result, t.err = work(); errors.Is(t.err, ErrUnknown) {
				r.unknown.CompareAndSwap(nil, &t.err)
			}
		})
		r.values[s.As], r.last[s.On] = t, t
		return nil
	}
	result, err := work()
	switch {
	case errors.Is(err, ErrLacks), errors.Is(err, ErrUnknown):
		return err
	case s.Fails != nil && err == nil:
		return fmt.Errorf("it did not fail, and gave %s", show(result))
	case s.Fails != nil:
		return fails(r.fill(s.Fails).(map[string]any), err, result)
	case err != nil:
		return err
	}
	if s.As != "" {
		r.values[s.As] = result
	}
	if s.See != nil {
		if found := differs(r.fill(s.See), result, "result"); found != "" {
			return errors.New(found)
		}
	}
	return nil
}
