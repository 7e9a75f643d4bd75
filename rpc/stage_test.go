package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test beside others, in a bubble of its own.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// run is bubble as a part of a test.
func run(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// stage has handlers that wait until the test lets them go.
type stage struct {
	t      *testing.T
	mu     sync.Mutex
	events []string // handlers that started, and whatever else is recorded
	gates  map[string]chan struct{}
}

func newStage(t *testing.T) *stage { return &stage{t: t, gates: map[string]chan struct{}{}} }

func (s *stage) record(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event)
}

// gate is closed when the request of that name may end.
func (s *stage) gate(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[name] == nil {
		s.gates[name] = make(chan struct{})
	}
	return s.gates[name]
}

// release lets requests end, one after another.
func (s *stage) release(names ...string) {
	for _, name := range names {
		synctest.Wait()
		close(s.gate(name))
	}
	synctest.Wait()
}

// expect compares what happened since the last call.
func (s *stage) expect(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	rig.Same(s.t, "events", want, s.events)
	s.events = nil
}

func (s *stage) count() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

type named struct{ Name, Queue string }

// handler records the request's name, does first, waits for the gate and
// answers with the name.
func (s *stage) handler(first func(context.Context) error) rpc.Handler {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var params named
		if err := json.Unmarshal(raw, &params); err != nil {
			return nil, err
		}
		s.record(params.Name)
		if first != nil {
			if err := first(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-s.gate(params.Name):
			return params.Name, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func byQueue(raw json.RawMessage) string {
	queue, _ := strictjson.StringMember(raw, "Queue")
	return queue
}

func (s *stage) table() rpc.Table {
	return rpc.Table{
		"free":    {Handle: s.handler(nil)},
		"urgent":  {Handle: s.handler(nil), Order: rpc.Order{Urgent: true}},
		"leave":   {Handle: s.handler(rpc.Leave)},
		"write":   {Handle: s.handler(nil), Order: rpc.Order{Queue: byQueue}},
		"read":    {Handle: s.handler(nil), Order: rpc.Order{Queue: byQueue, Shared: true}},
		"control": {Handle: s.handler(nil), Order: rpc.Order{Queue: byQueue, Urgent: true}},
		"block":   {Handle: s.handler(rpc.Block), Order: rpc.Order{Queue: byQueue}},
		"poll":    {Handle: s.handler(rpc.Leave), Order: rpc.Order{Queue: byQueue}},
		"first":   {Handle: s.handler(nil), Order: rpc.Order{Inline: true}},
		"echo": {Handle: func(_ context.Context, raw json.RawMessage) (any, error) {
			return slices.Clone(raw), nil
		}},
	}
}

// far is the other end of a peer under test: raw messages.
type far struct {
	t    *testing.T
	conn rpc.Conn
	mu   sync.Mutex
	got  []string // answers and notifications not yet looked at
}

// serve starts a peer and returns it with its far end, which reads all the
// time when reading is set. Both end with the test.
func serve(t *testing.T, cfg rpc.Config, reading bool) (*rpc.Peer, *far) {
	t.Helper()
	near, conn := rpc.Pipe()
	p := rpc.NewPeer(near, cfg)
	f := &far{t: t, conn: conn}
	var ends sync.WaitGroup
	ends.Go(func() { _ = p.Serve(context.Background()) })
	if reading {
		ends.Go(func() {
			for {
				m, err := conn.Read()
				if err != nil {
					f.add("end: " + err.Error())
					return
				}
				f.add(string(m))
			}
		})
	}
	t.Cleanup(func() {
		conn.Close()
		p.Close()
		ends.Wait()
	})
	return p, f
}

func (f *far) add(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, message)
}

func (f *far) send(format string, args ...any) {
	f.t.Helper()
	rig.Must(f.t, f.conn.Write(fmt.Appendf(nil, format, args...)))
}

// request sends a request whose id is its name.
func (f *far) request(method, name, queue string) {
	f.t.Helper()
	f.send(`{"id":%q,"method":%q,"params":{"Name":%q,"Queue":%q}}`, name, method, name, queue)
}

// expect compares the messages since the last call, in order.
func (f *far) expect(want ...string) {
	f.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	rig.Same(f.t, "messages", want, f.got)
	f.got = nil
}

// answers compares the ids that were answered since the last call, in order.
func (f *far) answers(want ...string) {
	f.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, raw := range f.got {
		m, err := protocol.Decode([]byte(raw))
		switch {
		case err != nil:
			ids = append(ids, raw)
		case m.Kind == protocol.KindError:
			ids = append(ids, fmt.Sprintf("%s %d", m.ID, m.Error.Code))
		default:
			ids = append(ids, m.ID.String())
		}
	}
	rig.Same(f.t, "answers", want, ids)
	f.got = nil
}

// flood sends requests until the peer reads no more, or n are sent, and
// returns how many it took.
func (f *far) flood(n int, method, queue string) int {
	const format = `{"id":%d,"method":%q,"params":{"Name":"%s%d","Queue":%q}}`
	var sent atomic.Int32
	go func() {
		for i := 0; i < n && f.conn.Write(fmt.Appendf(nil, format, i, method, method, i, queue)) == nil; i++ {
			sent.Add(1)
		}
	}()
	synctest.Wait()
	return int(sent.Load())
}

var errPlain = errors.New("it broke")
