package interop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/test/rig"
)

// TestReference drives the reference, which is an executor behind our registry and rendezvous,
// with our client.
func TestReference(t *testing.T) {
	codex := codexCLI(t)
	r := newReference(t, codex)
	r.serve(t, "work", r.Address)
	c := r.mustConnect(t, "work", r.Address)
	t.Run("environment info", func(t *testing.T) { testInfo(t, c) })
	t.Run("suite", func(t *testing.T) { (&server{t: t, home: r.home, reference: true}).uncut(t, c) })
	t.Run("two clients", func(t *testing.T) { testTwoClients(t, r) })

	// Each has an executor of its own.
	for name, test := range map[string]func(*testing.T, *reference){
		"harness is cut":     func(t *testing.T, r *reference) { testCut(t, r, "harness-cut", false) },
		"executor is cut":    func(t *testing.T, r *reference) { testCut(t, r, "executor-cut", true) },
		"upgrade is refused": testUpgradeRefused,
		"executor is gone":   testOffline,
		"direct transport":   testDirect,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, r)
		})
	}
}

// sh is the start of a shell that runs the script.
func sh(script string) protocol.StartParams {
	return protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", script},
		Cwd:  protocol.NewPathURI("/"),
		Env:  map[string]string{"PATH": os.Getenv("PATH"), "TERM": "dumb"},
	}
}

func mustStart(t *testing.T, c *client.Client, params protocol.StartParams) *client.Process {
	t.Helper()
	p, err := c.Start(t.Context(), params)
	rig.Must(t, err)
	return p
}

func testInfo(t *testing.T, c *client.Client) {
	info, err := c.Info(t.Context())
	rig.Must(t, err)
	t.Logf("executor version %s, shell %s, capabilities %+v", info.ExecutorVersion, info.Shell, info.Capabilities)
	rig.Is(t, strings.Contains(info.ExecutorVersion, "execagent"), false, "%q is the version of our own executor", info.ExecutorVersion)
	if info.ExecutorVersion == "" || info.Shell.Path == "" || info.PlatformOS != "linux" {
		t.Errorf("%+v", info)
	}
}

func testTwoClients(t *testing.T, r *reference) {
	var wg sync.WaitGroup
	var outs [2]bytes.Buffer
	for i := range outs {
		p := mustStart(t, r.mustConnect(t, "work", r.Address), sh(fmt.Sprintf("seq %d %d", 100_000*i+1, 100_000*(i+1))))
		wg.Go(func() {
			code, err := p.CopyOutput(t.Context(), &outs[i], io.Discard)
			rig.Check(t, err)
			rig.Is(t, code, 0, "exit code")
		})
	}
	wg.Wait()
	lines(t, outs[0].String()+outs[1].String(), 200_000)
}

// A session is a numbered output that goes on while nobody is connected.
type session struct {
	client    *client.Client
	processID string
	seq       uint64 // of the last event that has arrived
	text      []byte // that has arrived
}

// numbered is what the command of a session writes, a line every 10 ms.
const numbered = 400

func startSession(t *testing.T, c *client.Client) *session {
	t.Helper()
	p := mustStart(t, c, sh(fmt.Sprintf("for i in $(seq %d); do echo $i; sleep 0.01; done", numbered)))
	s := &session{client: c, processID: p.ID()}
	for event, err := range p.Events(t.Context()) {
		rig.Must(t, err)
		s.seq, s.text = event.Seq, append(s.text, event.Data...)
		if len(s.text) > 60 {
			break
		}
	}
	return s
}

// lost waits until a client has noticed that it has no connection.
func lost(t *testing.T, c *client.Client) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the client does not notice that its connection was cut")
	}
}

// resume comes back on a new stream and reads what was missed, until the end of the command.
func (s *session) resume(t *testing.T, d client.Config) {
	t.Helper()
	lost(t, s.client)
	began := time.Now()
	var c *client.Client
	rig.Until(t, "the session is free", func() bool {
		var err error
		c, err = connect(t, d, s.client.SessionID())
		if refused, ok := errors.AsType[*client.ServerError](err); ok && refused.Err.Code == protocol.CodeSessionAttached {
			return false // the executor has not yet heard of the loss
		}
		if _, cut := errors.AsType[*client.DisconnectedError](err); cut {
			return false // the executor is still losing its own connection
		}
		rig.Must(t, err)
		return true
	})
	t.Logf("back after %v", time.Since(began))
	rig.Is(t, c.SessionID(), s.client.SessionID(), "session")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wait := uint64(1000)
	for {
		params := protocol.ReadParams{ProcessID: s.processID, AfterSeq: &s.seq, WaitMs: &wait}
		var got protocol.ReadResult
		rig.Must(t, c.Call(ctx, protocol.MethodProcessRead, &params, &got))
		for _, chunk := range got.Chunks {
			if chunk.Seq != s.seq+1 {
				t.Fatalf("chunk %d after %d", chunk.Seq, s.seq)
			}
			s.seq, s.text = chunk.Seq, append(s.text, chunk.Chunk...)
		}
		if got.Closed && len(got.Chunks) == 0 {
			break
		}
	}
	lines(t, string(s.text), numbered)
}

// testCut cuts the executor or its harness, whose session goes on.
func testCut(t *testing.T, r *reference, environment string, executor bool) {
	p := rig.NewProxy(t, r.Address)
	at := map[bool]string{true: p.Address(), false: r.Address}
	r.serve(t, environment, at[executor])
	d := r.harness(t, environment, at[!executor])
	c, err := connect(t, d, "")
	rig.Must(t, err)
	s := startSession(t, c)
	p.Cut()
	s.resume(t, d)
	if _, registrations := p.Seen(); executor {
		rig.Is(t, registrations, 1, "registrations of the executor for a cut")
	}
}

// testUpgradeRefused: when an executor's request for its websocket is refused with a 4xx, it
// registers again and then works as before.
func testUpgradeRefused(t *testing.T, r *reference) {
	p := rig.NewProxy(t, r.Address)
	r.serve(t, "refused", p.Address())
	c := r.mustConnect(t, "refused", r.Address)
	before, _ := p.Seen()
	p.Refuse(1)
	p.Cut()
	rig.Until(t, "it has registered again", func() bool { _, n := p.Seen(); return n == 2 })
	rig.Until(t, "it has connected again", func() bool { n, _ := p.Seen(); return n == before+2 })
	lost(t, c)
	again := r.mustConnect(t, "refused", r.Address)
	rig.Is(t, printed(t, mustStart(t, again, sh("echo again")), 0), "again\n", "the output")
}

// testOffline: an executor that has ended is offline, and a harness that connects is told so.
func testOffline(t *testing.T, r *reference) {
	executor := r.serve(t, "gone", r.Address)
	r.mustConnect(t, "gone", r.Address)
	rig.Is(t, strings.Contains(r.environments(t), "gone"), true, "it is online")
	executor.Stop(t) // how it ends is its own affair
	rig.Until(t, "it is offline", func() bool { return !strings.Contains(r.environments(t), "gone") })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := r.harness(t, "gone", r.Address)
	_, err := d.Dial(ctx)
	refused, ok := errors.AsType[*relay.RegistryError](err)
	if !ok || refused.Status != http.StatusConflict || refused.Code != wire.CodeEnvironmentOffline {
		t.Errorf("connect: %v, want %s", err, wire.CodeEnvironmentOffline)
	}
}

// testDirect: the reference registers by AWS signatures with a key of our registry, and our command
// reaches it. It has one websocket, which the next harness waits for. Its session goes on over the
// next websocket.
func testDirect(t *testing.T, r *reference) {
	var key struct {
		ID     string `json:"access_key_id"`
		Secret string `json:"secret_access_key"`
	}
	text := r.Ask(t, "keys", "create", "--role", "executor", "--environment", "direct", "--aws", "-o", "json")
	rig.Must(t, json.Unmarshal([]byte(text), &key))
	at := rig.NewProxy(t, r.Address)
	cmd := exec.Command(r.codex, "exec-server", "--remote", "http://"+at.Address(), "--environment-id", "direct", "--remote-transport", "direct", "--aws-sigv4")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.home, "CODEX_HOME=" + r.home,
		"AWS_ACCESS_KEY_ID=" + key.ID, "AWS_SECRET_ACCESS_KEY=" + key.Secret, "AWS_REGION=eu-west-1", "AWS_EC2_METADATA_DISABLED=true",
	}
	rig.Start(t, cmd)
	rig.Until(t, "it is online", func() bool { return strings.Contains(r.environments(t), "direct") })
	for range 2 {
		out, err := r.ExecWith(t, "direct", []string{"--transport", "direct"}, "echo", "here").Output()
		rig.Must(t, err)
		rig.Is(t, string(out), "here\n", "%s: it prints", r.Log)
	}
	cat := r.ExecWith(t, "direct", []string{"--transport", "direct"}, "sh", "-c", "echo begun; read line; echo $line")
	in, err := cat.StdinPipe()
	rig.Must(t, err)
	p := rig.Start(t, cat)
	rig.Is(t, p.Line(t), "begun", "it says")
	at.Cut()
	rig.Must(t, rig.Err(fmt.Fprintln(in, "after the cut")))
	rig.Is(t, p.Line(t), "after the cut", "it says")
	in.Close()
	rig.Is(t, p.Exit(t), 0, "exit code")
}
