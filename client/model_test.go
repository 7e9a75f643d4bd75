package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// modelled is a process of TestModel: what has happened in it, and what the client told of it.
type modelled struct {
	process *client.Process
	printed strings.Builder
	events  int // so far
	told    int // of them, to the client
	sent    int // of them, to the client, which may not have got the last
	lost    int // output up to this one is no longer kept by the server
	mayGap  bool
	hasGap  bool
	exited  bool
	written strings.Builder
	writing sync.WaitGroup // of all writes, which come one after the other
	turn    chan struct{}  // has one when the next write may begin
	// unwritten are the errors of writes.
	unwritten error

	// What the consumer of its events has got, when it has ended.
	ended chan struct{}
	got   strings.Builder
	code  int
	err   error
}

func (m *modelled) consume(ctx context.Context) {
	defer close(m.ended)
	m.code, m.err = m.process.CopyOutput(ctx, &m.got, &m.got)
}

// TestModel: whatever happens to connections, and whenever, each process is told as it was.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) { checkModel(t) })
	})
}

func checkModel(t *rapid.T) {
	f := newFake(t)
	c := rig.Value(client.Connect(t.Context(), client.Config{Dial: f.dial}))
	defer c.Close()
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var all []*modelled
	defer func() { // in case of a failure
		over()
		c.Close()
		for _, m := range all {
			m.writing.Wait()
			<-m.ended
		}
	}()
	connected := func() bool { state, _ := c.State(); return state == client.Connected }
	pick := func(t *rapid.T) *modelled {
		if len(all) == 0 {
			t.Skip("no process")
		}
		m := all[rapid.IntRange(0, len(all)-1).Draw(t, "process")]
		if m.exited {
			t.Skip("it has exited")
		}
		return m
	}
	look := func() {
		synctest.Wait()
		if !connected() {
			return
		}
		for _, m := range all {
			m.mayGap = m.mayGap || m.lost > m.told
			m.hasGap = m.hasGap || m.lost > m.sent
			m.told, m.sent = m.events, m.events
		}
	}
	happened := func(m *modelled, events int) {
		m.events += events
		if f.current() != nil {
			m.told, m.sent = m.events, m.events
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) { look() },
		"start": func(t *rapid.T) {
			if len(all) == 4 || !connected() {
				t.Skip("not now")
			}
			m := &modelled{ended: make(chan struct{}), turn: make(chan struct{}, 1)}
			m.turn <- struct{}{}
			m.process = rig.Value(c.Start(ctx, named(fmt.Sprint("p", len(all)))))
			all = append(all, m)
			go m.consume(ctx)
		},
		"print": func(t *rapid.T) {
			m := pick(t)
			for range rapid.IntRange(1, 300).Draw(t, "lines") {
				line := fmt.Sprintln(m.events)
				m.printed.WriteString(line)
				f.print(m.process.ID(), line)
				happened(m, 1)
			}
		},
		"exit": func(t *rapid.T) {
			m := pick(t)
			m.exited = true
			f.exit(m.process.ID(), 7)
			happened(m, 2)
		},
		"write": func(t *rapid.T) {
			m := pick(t)
			text := fmt.Sprintln(m.written.Len())
			m.written.WriteString(text)
			m.writing.Go(func() {
				<-m.turn
				m.unwritten = errors.Join(m.unwritten, m.process.Write(ctx, []byte(text)))
				m.turn <- struct{}{}
			})
			synctest.Wait()
		},
		"cut": func(*rapid.T) {
			f.cut()
		},
		"cut in the middle": func(t *rapid.T) {
			if l := f.current(); l != nil { // what was sent may not have arrived
				m := pick(t)
				line := fmt.Sprintln(m.events)
				m.printed.WriteString(line)
				f.print(m.process.ID(), line)
				m.events++
				m.sent = m.events
				l.close()
			}
		},
		"trouble": func(t *rapid.T) {
			for range rapid.IntRange(1, 5).Draw(t, "dials") {
				f.meets(rapid.SampledFrom([]dialFunc{refuse, f.acceptAndDrop, f.acceptLate}).Draw(t, "meets"))
			}
		},
		"busy": func(*rapid.T) { f.once(protocol.MethodInitialize, attachedStill) },
		"forget": func(t *rapid.T) {
			m := pick(t)
			f.forget(m.process.ID())
			m.lost = m.events
		},
		"time": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
		},
	})
	// In the end all is well, and each process exits. Or nobody comes back.
	well := rapid.Bool().Draw(t, "well")
	if !well {
		f.mu.Lock()
		f.next, f.later = nil, refuse
		f.mu.Unlock()
		time.Sleep(2 * time.Second) // for a dial that is under way
		look()
		f.cut()
	}
	time.Sleep(time.Minute)
	look()
	if connected() != well {
		t.Fatalf("in the end the client is connected: %v, %v", connected(), c.Err())
	}
	for _, m := range all {
		if !m.exited {
			f.exit(m.process.ID(), 7)
		}
	}
	for _, m := range all {
		m.writing.Wait()
		<-m.ended
		id := m.process.ID()
		printed, got := m.printed.String(), m.got.String()
		_, disconnected := errors.AsType[*client.DisconnectedError](m.err)
		_, recover := errors.AsType[*client.RecoverError](m.err)
		rig.Is(t, well && !m.mayGap && m.unwritten != nil, false, "writing to %s: %v", id, m.unwritten)
		switch {
		case m.err == nil:
			rig.Is(t, got == printed && m.code == 7, true, "%s printed %q, got %q, exit code %d", id, printed, got, m.code)
			if input := f.input(id); input != m.written.String() && (m.unwritten == nil || !strings.HasPrefix(m.written.String(), input)) {
				t.Errorf("%s was written %q, and read %q", id, m.written.String(), input)
			}
		case !strings.HasPrefix(printed, got):
			t.Errorf("%s printed %q, got %q", id, printed, got)
		case recover && !m.mayGap, disconnected && well, !recover && !disconnected:
			t.Errorf("%s ends with %v; gap %v", id, m.err, m.mayGap)
		}
		rig.Is(t, well && m.hasGap && m.err == nil, false, "%s is complete, with a gap", id)
	}
}
