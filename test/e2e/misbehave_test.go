package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/registry/wire"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/noise"
	"github.com/execagent/execagent/relay/socket"
)

// A villain is a harness with a key of its own that misbehaves until its context ends.
type villain struct {
	t       *testing.T
	key     string
	address string // of the registry, as it sees it

	did      atomic.Int64  // frames sent, streams opened
	underWay chan struct{} // closed by counts
	once     sync.Once
}

// counts notes that it has done n things more. After some it is under way.
func (v *villain) counts(n int64) {
	const some = 40
	if v.did.Add(n) >= some {
		v.once.Do(func() { close(v.underWay) })
	}
}

// url asks for the URL of a rendezvous's websocket, "" when that is refused.
func (v *villain) url(ctx context.Context, identity *noise.Identity) string {
	body, err := json.Marshal(wire.ConnectRequest{HarnessPublicKey: identity.PublicKey()})
	if err != nil {
		v.t.Error(err)
		return ""
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+v.address+"/cloud/environment/ci-1/connect", bytes.NewReader(body))
	if err != nil {
		v.t.Error(err)
		return ""
	}
	request.Header.Set("Authorization", "Bearer "+v.key)
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

// frames sends frames over one websocket after the other, up to a thousand times a second.
func (v *villain) frames(ctx context.Context, next func(stream string) []frame.Frame) {
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
			for _, f := range next(fmt.Sprint("villain ", n)) {
				m := socket.NewMessage(64 + len(f.Payload))
				m.Bytes = f.Append(m.Bytes)
				if err = lane.Send(m); err != nil {
					break
				}
				v.counts(1)
			}
		}
		stop()
		_ = ws.Close()
		reading.Wait()
	}
}

// dialer connects as it should.
func (v *villain) dialer() *relay.Dialer {
	identity, err := noise.NewIdentity()
	if err != nil {
		v.t.Error(err)
		return nil
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{BaseURL: "http://" + v.address, EnvironmentID: "ci-1", Tokens: auth.Bearer(v.key)})
	if err != nil {
		v.t.Error(err)
		return nil
	}
	return &relay.Dialer{Registry: registry, Identity: identity}
}

// villainies are ways to misbehave towards the other harnesses of an executor.
var villainies = map[string]func(ctx context.Context, v *villain){
	"random handshakes": func(ctx context.Context, v *villain) {
		message1 := make([]byte, 3568)
		_, _ = rand.Read(message1) // it has no error
		v.frames(ctx, func(stream string) []frame.Frame {
			id := []byte(stream)
			return []frame.Frame{{StreamID: id, Body: frame.Resume}, {StreamID: id, Body: frame.Handshake, Payload: message1}}
		})
	},
	"handshakes that are given up": func(ctx context.Context, v *villain) {
		message1 := make([]byte, 3568)
		_, _ = rand.Read(message1) // it has no error
		v.frames(ctx, func(stream string) []frame.Frame {
			id := []byte(stream)
			return []frame.Frame{{StreamID: id, Body: frame.Handshake, Payload: message1}, {StreamID: id, Body: frame.Reset, Reason: []byte("never mind")}}
		})
	},
	"streams that are none": func(ctx context.Context, v *villain) {
		v.frames(ctx, func(stream string) []frame.Frame {
			return []frame.Frame{{StreamID: []byte(stream), Body: frame.Resume, NextSeq: 7, Ack: 7}}
		})
	},
	"streams that come and go": func(ctx context.Context, v *villain) {
		d := v.dialer()
		defer d.Registry.Close()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					if c, err := d.Dial(ctx); err == nil {
						v.counts(1)
						_ = c.Close()
					}
				}
			})
		}
		all.Wait()
	},
	"streams that stay": func(ctx context.Context, v *villain) {
		d := v.dialer()
		defer d.Registry.Close()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				for ctx.Err() == nil {
					if c, err := d.Dial(ctx); err == nil {
						v.counts(1)
						<-ctx.Done()
						_ = c.Close()
					}
				}
			})
		}
		all.Wait()
	},
	"output that nobody takes": func(ctx context.Context, v *villain) {
		// Its websockets are connected, but nothing of what comes is read: no record is acknowledged.
		gate := newGate(v.t, v.address)
		v.address = gate.address()
		d := v.dialer()
		defer d.Registry.Close()
		const streams = 60
		started := make(chan error, streams)
		var all sync.WaitGroup
		for range streams {
			all.Go(func() {
				c, err := client.Connect(ctx, client.Config{Dial: d.Dial})
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
		close(gate.shut)
		v.counts(writing)
		<-ctx.Done()
		gate.close()
		all.Wait()
	},
}

// gate passes TCP connections on, until it is shut: then nothing of what the server sends is read any more.
type gate struct {
	listener net.Listener
	target   string
	shut     chan struct{} // closed by its user
	ended    chan struct{} // closed by close
	wg       sync.WaitGroup
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: l, target: target, shut: make(chan struct{}), ended: make(chan struct{})}
	g.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			g.wg.Go(func() { g.serve(from) })
		}
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

func (g *gate) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", g.target)
	if err != nil {
		return
	}
	defer to.Close()
	g.wg.Go(func() {
		defer from.Close()
		buffer := make([]byte, 32<<10)
		for {
			select {
			case <-g.shut:
				<-g.ended
				return
			default:
			}
			n, err := to.Read(buffer)
			if err == nil {
				_, err = from.Write(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	})
	g.wg.Go(func() {
		<-g.ended
		_ = from.Close()
		_ = to.Close()
	})
	_, _ = io.Copy(to, from)
}

func (g *gate) close() {
	_ = g.listener.Close()
	close(g.ended)
	g.wg.Wait()
}

// TestMisbehavingHarness: whatever a harness does, the others of its executor are served: those that are connected, and
// those that connect. What it costs them and the executor is logged; the table in docs/remote.md says what bounds it.
func TestMisbehavingHarness(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	for name, misbehave := range villainies {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			executor := s.serve(t, "ci-1")
			served := time.Now()
			cat := s.exec(t, "ci-1", "cat")
			stdin, err := cat.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cat.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cat.Start(); err != nil {
				t.Fatal(err)
			}
			answers := bufio.NewReader(stdout)
			echo := func(text string) time.Duration {
				t.Helper()
				began := time.Now()
				if _, err := io.WriteString(stdin, text+"\n"); err != nil {
					t.Fatal(err)
				}
				if line, err := answers.ReadString('\n'); err != nil || line != text+"\n" {
					t.Fatalf("the innocent's command answers %q, %v", line, err)
				}
				return time.Since(began)
			}
			echo("before")

			key, _ := s.createSecondKey(t)
			ctx, cancel := context.WithCancel(t.Context())
			v := &villain{t: t, key: key, address: s.address, underWay: make(chan struct{})}
			var misbehaving sync.WaitGroup
			misbehaving.Go(func() { misbehave(ctx, v) })
			defer misbehaving.Wait()
			defer cancel()
			select {
			case <-v.underWay:
			case <-time.After(patience):
				t.Fatalf("it has done %d things only", v.did.Load())
			}
			began, before := time.Now(), processorTime(executor.Process.Pid)
			var echoed, ran []time.Duration
			for i := range 6 {
				echoed = append(echoed, echo(fmt.Sprint("line ", i)))
				start := time.Now()
				out, err := s.exec(t, "ci-1", "echo", "fine").Output()
				for range 2 { // agent exec gives up after ten seconds, and this machine may be busy
					if err != nil {
						out, err = s.exec(t, "ci-1", "echo", "fine").Output()
					}
				}
				if err != nil || string(out) != "fine\n" {
					t.Fatalf("a command of an innocent: %q, %v\n%s", out, err, s.printed)
				}
				ran = append(ran, time.Since(start))
				<-time.After(300 * time.Millisecond)
			}
			took := time.Since(began)
			lines, memory := strings.Count(executor.printed.String(), "\n"), peak(t, executor.Process.Pid)
			t.Logf("%d misdeeds; echo %v, commands %v; the executor used %.0f %% of a processor, %d MiB, %d lines of log", v.did.Load(),
				echoed, ran, 100*float64(processorTime(executor.Process.Pid)-before)/float64(took), memory>>20, lines)
			// Of streams there are 256 lines in 10 s, and one that says so; of the executor itself a few.
			if most := 257*(int(time.Since(served)/(10*time.Second))+1) + 20; lines > most {
				t.Errorf("%d lines of log, want at most %d", lines, most)
			}
			if memory > 512<<20 {
				t.Errorf("the executor took %d MiB, want at most 512", memory>>20)
			}
			cancel()
			misbehaving.Wait()
			stdin.Close()
			if err := cat.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// processorTime is what a process has used, proc_pid_stat(5).
func processorTime(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	var user, system int64
	fields := strings.Fields(rest)
	if len(fields) > 12 {
		_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// peak is the most memory that a process has had, in bytes, proc_pid_status(5).
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kibibytes int64
	if _, err := fmt.Sscan(rest, &kibibytes); err != nil {
		t.Fatalf("%v: %s", err, status)
	}
	return kibibytes << 10
}
