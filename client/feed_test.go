package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestFeed: what is written arrives in order and once, also where answers are lost one after the
// other while others are under way.
func TestFeed(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		c, p := f.process(t)
		in := p.Feed(t.Context())
		var want strings.Builder
		for i := range 200 {
			if i%17 == 3 {
				f.lose(protocol.MethodProcessWrite)
			}
			text := strings.Repeat(string(rune('a'+i%26)), 1+i*500)
			want.WriteString(text)
			rig.Is(t, fmt.Sprint(in.Write([]byte(text))), fmt.Sprint(len(text), nil), "write %d", i)
		}
		rig.Must(t, in.Close())
		rig.Is(t, f.input("p") == want.String(), true, "the process got what was written")
		rig.Is(t, c.Generation() >= 5, true, "%d connections were enough", c.Generation())
	})
}

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
