package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// A villain is a harness with a key of its own that misbehaves until its context ends.
type villain struct {
	t    *testing.T
	site *rig.Site // with that key

	did atomic.Int64 // frames sent, streams opened
}

// url asks for the URL of a rendezvous's websocket, "" when that is refused.
func (v *villain) url(ctx context.Context, identity *noise.Identity) string {
	body, err := json.Marshal(wire.ConnectRequest{HarnessPublicKey: identity.PublicKey()})
	if err != nil {
		v.t.Error(err)
		return ""
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, v.site.URL()+"/cloud/environment/ci-1/connect", bytes.NewReader(body))
	if err != nil {
		v.t.Error(err)
		return ""
	}
	request.Header.Set("Authorization", "Bearer "+v.site.Harness)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var answer wire.ConnectResponse
	if response.StatusCode != http.StatusOK || json.NewDecoder(response.Body).Decode(&answer) != nil {
		return ""
	}
	return answer.URL
}

// frames sends frames over one websocket after the other, up to a thousand times a second. Next makes
// those of a stream; random has the length of the first message of a handshake.
func (v *villain) frames(ctx context.Context, next func(stream, random []byte) []frame.Frame) {
	random := make([]byte, 3568)
	_, _ = rand.Read(random) // it has no error
	identity, err := noise.NewIdentity()
	if err != nil {
		v.t.Error(err)
		return
	}
	for n := 0; ctx.Err() == nil; {
		url := v.url(ctx, identity)
		if url == "" {
			continue // it has asked too often
		}
		ws, err := socket.Dial(ctx, url, nil, socket.Config{})
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				m, err := ws.Read()
				if err != nil {
					return
				}
				m.Release()
			}
		})
		lane := ws.NewLane(0)
		for err == nil {
			n++
			<-time.After(time.Millisecond) // it is not the processors of this machine that are to be tested
			for _, f := range next(fmt.Append(nil, "villain ", n), random) {
				m := socket.NewMessage(64 + len(f.Payload))
				m.Bytes = f.Append(m.Bytes)
				if err = lane.Send(m); err != nil {
					break
				}
				v.did.Add(1)
			}
		}
		stop()
		_ = ws.Close()
		reading.Wait()
	}
}

// streams opens streams, so many at once, and closes them at once or in the end.
func (v *villain) streams(ctx context.Context, n int, stay bool) {
	d := harness(v.t, v.site, "ci-1")
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if c, err := d.Dial(ctx); err == nil {
					v.did.Add(1)
					if stay {
						<-ctx.Done()
					}
					_ = c.Close()
				}
			}
		})
	}
	all.Wait()
}

// villainies are the ways in which a harness can misbehave towards others of the same executor.
var villainies = map[string]func(ctx context.Context, v *villain){
	"random handshakes": func(ctx context.Context, v *villain) {
		v.frames(ctx, func(id, random []byte) []frame.Frame {
			return []frame.Frame{{StreamID: id, Body: frame.Resume}, {StreamID: id, Body: frame.Handshake, Payload: random}}
		})
	},
	"handshakes that are given up": func(ctx context.Context, v *villain) {
		v.frames(ctx, func(id, random []byte) []frame.Frame {
			reset := frame.Frame{StreamID: id, Body: frame.Reset, Reason: []byte("never mind")}
			return []frame.Frame{{StreamID: id, Body: frame.Handshake, Payload: random}, reset}
		})
	},
	"streams that are none": func(ctx context.Context, v *villain) {
		v.frames(ctx, func(id, _ []byte) []frame.Frame {
			return []frame.Frame{{StreamID: id, Body: frame.Resume, NextSeq: 7, Ack: 7}}
		})
	},
	"streams that come and go": func(ctx context.Context, v *villain) { v.streams(ctx, 4, false) },
	"streams that stay":        func(ctx context.Context, v *villain) { v.streams(ctx, 200, true) },
	"output that nobody takes": func(ctx context.Context, v *villain) {
		// Its websockets stay connected, but nothing that comes is read: no record is
		// acknowledged.
		proxy := rig.NewProxy(v.t, v.site.Address)
		v.site = v.site.At(proxy.Address())
		d := harness(v.t, v.site, "ci-1")
		const streams = 60
		started := make(chan error, streams)
		var all sync.WaitGroup
		for range streams {
			all.Go(func() {
				c, err := client.Connect(ctx, client.Config{Dial: d.Dial, Single: true})
				if err != nil {
					started <- err
					return
				}
				defer c.Close()
				_, err = c.Start(ctx, protocol.StartParams{Argv: []string{"yes"}, Cwd: protocol.NewPathURI("/"), Env: map[string]string{"PATH": os.Getenv("PATH")}})
				started <- err
				<-ctx.Done()
			})
		}
		writing := int64(0)
		for range streams {
			if err := <-started; err == nil {
				writing++
			} else if ctx.Err() == nil {
				v.t.Logf("a stream less: %v", err) // as on a machine that is busy
			}
		}
		proxy.HoldDown()
		v.did.Add(writing)
		<-ctx.Done()
		proxy.Close()
		all.Wait()
	},
}

// TestMisbehavingHarness: whatever one harness does, the executor serves the others, both those
// that are connected and those that connect meanwhile. The log has what it costs them and the
// executor; the table in docs/remote.md says what bounds it.
func TestMisbehavingHarness(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	for name, misbehave := range villainies {
		t.Run(name, func(t *testing.T) {
			s := rig.NewSite(t)
			executor := s.Serve(t, "ci-1")
			served := time.Now()
			cat := connect(t, s.Exec(t, "ci-1", "cat")) // of an innocent
			echo := func(text string) time.Duration {
				t.Helper()
				began := time.Now()
				rig.Must(t, rig.Err(fmt.Fprintln(cat.stdin, text)))
				cat.says(t, text)
				return time.Since(began)
			}
			echo("before")

			theirs := s.At(s.Address)
			theirs.Harness, _ = s.CreateKey(t, "harness")
			ctx, cancel := context.WithCancel(t.Context())
			v := &villain{t: t, site: theirs}
			var misbehaving sync.WaitGroup
			misbehaving.Go(func() { misbehave(ctx, v) })
			defer misbehaving.Wait()
			defer cancel()
			rig.Until(t, "it has done forty things", func() bool { return v.did.Load() >= 40 })
			began, before := time.Now(), rig.CPU(executor.Process.Pid)
			var echoed, ran []time.Duration
			for i := range 6 {
				echoed = append(echoed, echo(fmt.Sprint("line ", i)))
				start := time.Now()
				said := ""
				for try := 0; said != "fine\n" && try < 3; try++ { // agent exec gives up after ten seconds, and this machine may be busy
					said = says(t, s.Exec(t, "ci-1", "echo", "fine"))
				}
				rig.Is(t, said, "fine\n", "%s: a command of an innocent", s.Log)
				ran = append(ran, time.Since(start))
				<-time.After(300 * time.Millisecond)
			}
			took := time.Since(began)
			lines := strings.Count(executor.Printed.String(), "\n")
			memory := memoryOf(t, executor.Process.Pid, "VmHWM")
			t.Logf("%d misdeeds; echo %v, commands %v; the executor used %.0f %% of a processor, %d MiB, %d lines of log", v.did.Load(),
				echoed, ran, 100*float64(rig.CPU(executor.Process.Pid)-before)/float64(took), memory>>10, lines)
			// Streams may cause 256 lines in 10 s, and one that says that more were left out; the
			// executor adds a few of its own.
			if most := 257*(int(time.Since(served)/(10*time.Second))+1) + 20; lines > most {
				t.Errorf("%d lines of log, want at most %d", lines, most)
			}
			rig.Is(t, memory > 512<<10, false, "the executor took %d MiB, want at most 512", memory>>10)
			cancel()
			misbehaving.Wait()
			_ = cat.stdin.Close()
			rig.Is(t, cat.Exit(t), 0, "exit code")
		})
	}
}
