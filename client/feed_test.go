package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestFeedFails: what the server does not take is an error of a later write or of the end, and the
// end of the context ends it.
func TestFeedFails(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, p := f.process(t)
		rig.Must(t, p.CloseStdin(t.Context()))
		in := p.Feed(t.Context())
		var err error
		for range 20 {
			if _, err = in.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		rig.Is(t, isClosed(err), true, "got %v", err)
		rig.Is(t, in.Close(), err, "the end says")

		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("enough")
		cancel(reason)
		in = start(t, c, named("q")).Feed(ctx)
		for range 20 {
			if _, err = in.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
		rig.Is(t, err, reason, "")
	})
}

// refuses makes the fake refuse writes as a server does that is short of memory: after a refusal it
// takes the refused writes first, in order. It asks busy about each write that it could take, and
// lost whether the connection ends before the answer to a write that it has taken.
func (f *fake) refuses(busy, lost func() bool) {
	var mu sync.Mutex
	missing := map[*link][]string{}
	f.on(protocol.MethodProcessWrite, func(l *link, r request) any {
		mu.Lock()
		defer mu.Unlock()
		var write struct{ WriteID string }
		rig.Check(f.t, json.Unmarshal(r.Params, &write))
		list := missing[l]
		if first := len(list) == 0 || list[0] == write.WriteID; first && !busy() {
			missing[l] = list[min(1, len(list)):]
			answer := f.answer(l, r)
			if lost() {
				l.close()
				return silence{}
			}
			return answer
		}
		if !slices.Contains(list, write.WriteID) {
			missing[l] = append(list, write.WriteID)
		}
		return &protocol.Error{Code: protocol.CodeInvalidRequest, Message: "no memory", Data: []byte(`{"reason":"busy"}`)}
	})
}

// TestFeed: what is written arrives in order and once, although the server refuses many writes for
// lack of memory, and connections are lost with answers that were under way.
func TestFeed(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, p := f.process(t)
		random := rand.New(rand.NewPCG(1, 2))
		asked := 0 // the first write is taken, which the client does not hear, and then refused
		busy := func() bool { asked++; return asked == 2 || random.IntN(4) == 0 && asked > 2 }
		f.refuses(busy, func() bool { return asked == 1 || random.IntN(4) == 0 })
		in := p.Feed(t.Context())
		var want strings.Builder
		for i := range 100 {
			text := strings.Repeat(string(rune('a'+i%26)), 1+i*300)
			want.WriteString(text)
			rig.Is(t, fmt.Sprint(in.Write([]byte(text))), fmt.Sprint(len(text), nil), "write %d", i)
		}
		rig.Must(t, in.Close())
		rig.Is(t, f.input("p") == want.String(), true, "the process got what was written")
		rig.Is(t, c.Generation() >= 2, true, "%d connection was enough", c.Generation())
	})
}

// TestWriteGivenUp: a write that was given up while the server refuses it leaves nothing that the
// server waits for. Its handle can write on, and close the input.
func TestWriteGivenUp(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		_, p := f.process(t)
		busy := true
		f.refuses(func() bool { return busy }, func() bool { return false })
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(enough) })
		rig.Is(t, p.Write(ctx, make([]byte, 2<<20)), enough, "a write that is given up")
		busy = false
		rig.Must(t, p.Write(t.Context(), []byte("and on")))
		rig.Is(t, f.input("p"), "and on", "the process got")
		busy = true
		in := p.Feed(ctx)
		rig.Is(t, rig.Err(in.Write(make([]byte, 5<<20))), enough, "a feed that is given up")
		rig.Is(t, in.Close(), enough, "its end says")
		synctest.Wait()
		rig.Is(t, f.count(protocol.MethodProcessCloseStdin), 1, "the input is closed")
	})
}
