package rpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestConcurrency(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ configured, want int }{{0, 64}, {2, 2}, {3, 3}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: tt.configured}, true)
			f.flood(tt.want+2, "free", "")
			rig.Is(t, s.count(), tt.want, "requests run at once")
			s.release("free1")
			f.answers("1")
			rig.Is(t, s.count(), tt.want+1, "requests ran")
		})
	}
}

func TestAnswersInOrderOfCompletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		_, f := serve(t, rpc.Config{Table: s.table()}, true)
		f.request("free", "a", "")
		f.request("write", "b", "1")
		f.request("write", "c", "1")
		f.request("write", "d", "2")
		synctest.Wait()
		s.release("c", "d")
		f.answers(`"d"`)
		s.release("a")
		f.answers(`"a"`)
		s.release("b")
		f.answers(`"b"`, `"c"`)
	})
}

func TestFullPeerStopsReading(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method, queue string
		want          int // messages taken: those that run and 64 parked
	}{
		{"free", "", 3 + 64},
		{"write", "q", 1 + 64},
		{"read", "q", 3 + 64},
		{"urgent", "", 64},
		{"control", "q", 1 + 64 - 1}, // the one that runs counts too
	}
	for _, tt := range tests {
		run(t, tt.method, func(t *testing.T) {
			s := newStage(t)
			_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 3}, true)
			rig.Is(t, f.flood(500, tt.method, tt.queue), tt.want, "requests that were taken")
			s.release(tt.method + "0")
			f.answers("0")
		})
	}
}

// TestUnreadAnswersStopReading pins that a client which never reads does not
// make the peer hold ever more requests, urgent ones included.
func TestUnreadAnswersStopReading(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]int{"free": 64 + 64, "urgent": 64, "unknown": 1, "first": 1} {
		run(t, method, func(t *testing.T) {
			s := newStage(t)
			for i := range 500 {
				close(s.gate(fmt.Sprint(method, i)))
			}
			_, f := serve(t, rpc.Config{Table: s.table()}, false)
			rig.Is(t, f.flood(500, method, ""), want, "requests were taken")
		})
	}
}

func TestReadingResumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 2}, true)
		f.flood(500, "free", "")
		for i := range 500 {
			close(s.gate(fmt.Sprint("free", i)))
		}
		rig.Is(t, s.count(), 500, "of 500 requests ran")
	})
}

func TestWaitingLimit(t *testing.T) {
	t.Parallel()
	for method, queue := range map[string]string{"leave": "", "poll": "q", "block": "q"} {
		run(t, method, func(t *testing.T) {
			s := newStage(t)
			_, f := serve(t, rpc.Config{Table: s.table()}, true)
			rig.Is(t, f.flood(1024, method, queue), 1024, "requests that were read")
			f.answers()
			f.request(method, "a", queue)
			f.answers(`"a" -32600`)
			f.request("free", "b", "")
			s.release("b", method+"0")
			f.answers(`"b"`, `0`)
			f.request(method, "c", queue)
			f.answers()
		})
	}
}

func TestBlockAndLeave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 2}, true)
		for _, r := range [][3]string{{"block", "a", "1"}, {"write", "b", "1"}, {"poll", "c", "2"}, {"write", "d", "2"},
			{"control", "e", "1"}, {"free", "f", ""}, {"free", "g", ""}} {
			f.request(r[0], r[1], r[2])
			synctest.Wait()
		}
		s.expect("a", "c", "d", "e", "f") // neither b, behind a, nor g, without a slot
		s.release("e", "f")
		f.answers(`"e"`, `"f"`)
		s.expect("g")
		s.release("g", "b", "a", "c", "d")
		f.answers(`"g"`, `"a"`, `"b"`, `"c"`, `"d"`)
	})
}

func TestAnsweredWithoutASlot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		p, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 2}, true)
		f.flood(10, "free", "")
		f.request("urgent", "u", "")
		f.send(`{"id":"x","method":"nope"}`)
		f.request("first", "i", "")
		called := make(chan error, 1)
		go func() { called <- p.Call(context.Background(), "m", nil, nil) }()
		f.answers(`"x" -32601`, `1`)
		s.release("u", "i")
		f.answers(`"u"`, `"i"`)
		f.send(`{"id":1,"result":{}}`)
		rig.Check(t, <-called)
	})
}

func TestStrictOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 1}, true)
		for i, method := range []string{"poll", "block", "urgent", "free", "nope", "read", "read", "write"} {
			f.request(method, string(rune('a'+i)), "q")
		}
		s.expect("a")
		s.release("b", "c", "d", "f", "g", "h")
		f.answers()
		s.release("a")
		f.answers(`"a"`, `"b"`, `"c"`, `"d"`, `"e" -32601`, `"f"`, `"g"`, `"h"`)
		s.expect("b", "c", "d", "f", "g", "h")
	})
}

func TestStrictInlineWaitsForAll(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"free", "leave", "block"} {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 1}, true)
			f.request(method, "a", "q")
			f.request("free", "b", "")
			f.request("first", "c", "")
			s.expect("a")
			s.release("c", "b")
			s.expect()
			s.release("a")
			f.answers(`"a"`, `"b"`, `"c"`)
		})
	}
}

// TestStrictPeerNoticesTheEnd pins that a long poll with many requests behind
// it does not keep a strict peer from seeing that its client is gone.
func TestStrictPeerNoticesTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		closing := false
		_, f := serve(t, rpc.Config{Table: s.table(), Concurrency: 1, Closing: func(error) { closing = true }}, true)
		f.request("poll", "a", "q")
		rig.Is(t, f.flood(500, "free", ""), 500, "of 500 requests were read behind one that waits")
		f.conn.Close()
		synctest.Wait()
		rig.Is(t, closing, true, "the end was noticed")
	})
}

// TestHeedlessClient: a client that sends on and on behind a refused piece of a stream loses its
// connection.
func TestHeedlessClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		table, write := s.table(), s.table()["write"]
		write.Order.Piece = func(params json.RawMessage) (stream, piece string) { return "s", string(params) }
		table["write"] = write
		_, f := serve(t, rpc.Config{Table: table}, true)
		f.request("block", "a", "q")
		// One that blocks and 1,023 that wait, then 4,096 that are missing, and one more.
		rig.Is(t, f.flood(6000, "write", "q"), 1023+4096+1, "writes until the end")
	})
}

func TestInlineOrder(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			table := s.table()
			cfg := rpc.Config{Table: table, Concurrency: concurrency}
			cfg.Notification = func(_ context.Context, method string, params json.RawMessage) error {
				s.record(method + string(params))
				return nil
			}
			_, f := serve(t, cfg, true)
			go func() {
				f.request("first", "a", "")
				f.send(`{"method":"initialized","params":[1]}`)
				f.request("urgent", "b", "")
				f.request("free", "c", "")
			}()
			s.expect("a")
			s.release("c")
			s.expect()
			s.release("a")
			if concurrency == 1 {
				s.expect("initialized[1]", "b")
			} else {
				synctest.Wait()
				s.mu.Lock()
				rig.Is(t, fmt.Sprint(len(s.events), s.events[:1]), "3 [initialized[1]]", "events %q", s.events)
				s.mu.Unlock()
			}
			s.release("b")
		})
	}
}

// TestQueueOfUnreadableParams pins that params which name no queue are no
// trouble for the order.
func TestQueueOfUnreadableParams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		_, f := serve(t, rpc.Config{Table: s.table(), WireError: func(error) *protocol.Error {
			return protocol.InvalidParams("no")
		}}, true)
		for i, params := range []string{`null`, `[]`, `5`, `{"Queue":5}`, `{"Queue":{}}`} {
			f.send(`{"id":%d,"method":"write","params":%s}`, i, params)
			synctest.Wait()
		}
		f.send(`{"id":9,"method":"write"}`)
		s.release("")
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		rig.Is(t, len(f.got), 6, "answers: %q", f.got)
	})
}
