package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/projection/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Variables that make the test binary a server.
const (
	fakeMode = "FAKE_MCP"
	fakePIDs = "FAKE_MCP_PIDS" // a file that gets the pid of each start
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeMode); mode != "" {
		fake{mode, bufio.NewWriter(os.Stdout)}.serve()
		return
	}
	goleak.VerifyTestMain(m)
}

// fake is a server that misbehaves as its mode says. Modes that are named like a step die there.
type fake struct {
	mode string
	out  *bufio.Writer
}

func (f fake) serve() {
	note(os.Getpid())
	f.step("start")
	switch f.mode {
	case "greeting":
		fmt.Fprint(f.out, "Welcome!\n\n{\n[]\n{\"a\":1}\n")
	case "line":
		for {
			fmt.Fprint(f.out, "{\"jsonrpc\":\"2.0\"", strings.Repeat(" ", 4096))
		}
	case "requests":
		for i := 0; ; i++ {
			fmt.Fprintf(f.out, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i)
		}
	case "stderr":
		go func() {
			for {
				fmt.Fprint(os.Stderr, strings.Repeat("oh no\n", 4096))
			}
		}()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
		child := exec.Command("sleep", "100000")
		if err := child.Start(); err != nil {
			panic(err)
		}
		note(child.Process.Pid)
	}
	f.out.Flush()
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
				Cursor          string `json:"cursor"`
				Name            string `json:"name"`
				Arguments       struct {
					Text string `json:"text"`
				} `json:"arguments"`
				Meta struct {
					Plugin string `json:"plugin_id"`
				} `json:"_meta"`
			} `json:"params"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			panic(err)
		}
		f.step(m.Method)
		if m.ID == nil || f.mode == "silent" {
			continue
		}
		switch m.Method {
		case "initialize":
			version := m.Params.ProtocolVersion
			switch f.mode {
			case "version":
				version = "1999-01-01"
			case "refusal":
				f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"I do not know that version"}}`, m.ID)
				continue
			}
			f.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}}`, m.ID, version)
			if f.mode == "notifications" {
				for {
					f.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%q}}`, strings.Repeat("x", 4096))
				}
			}
		case "tools/list":
			switch f.mode {
			case "pages":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t%s","inputSchema":{"type":"object"}}],"nextCursor":"%sx"}}`, m.ID, m.Params.Cursor, m.Params.Cursor)
			case "large":
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","description":%q,"inputSchema":{"type":"object"}}],"nextCursor":"x"}}`, m.ID, strings.Repeat("x", 1<<20))
			default:
				more := ""
				if m.Params.Cursor != "" || f.mode == "changed" {
					more = `,{"name":"more","inputSchema":{"type":"object"}}`
				}
				f.say(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"echo","description":"Says it again.","inputSchema":{"type":"object"}}%s]}}`, m.ID, more)
			}
		case "tools/call":
			switch f.mode {
			case "mute":
				continue
			case "change":
				f.mode = "changed"
				f.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			case "questions":
				f.say(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}`)
			}
			text := fmt.Sprintf("%s of %s with %s", m.Params.Arguments.Text, m.Params.Meta.Plugin, os.Getenv("EXTRA"))
			f.say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, text)
		default:
			f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
		}
	}
	if f.mode == "stubborn" {
		select {}
	}
}

func (f fake) say(format string, args ...any) {
	fmt.Fprintf(f.out, format+"\n", args...)
	f.out.Flush()
}

func (f fake) step(name string) {
	if f.mode == name {
		fmt.Fprintf(os.Stderr, "dying in %s", name)
		os.Exit(3)
	}
}

func note(pid int) {
	f, err := os.OpenFile(os.Getenv(fakePIDs), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(f, pid)
	f.Close()
}

// patience is how long something may take on a machine that has much else to do.
const patience = 5 * time.Minute

// stage has an agent in memory, and a client of it whose connection can be cut.
type stage struct {
	client *client.Client
	pids   string

	mu   sync.Mutex
	last rpc.Conn
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{pids: filepath.Join(t.TempDir(), "pids")}
	a := agent.New(agent.Config{Environ: os.Environ()})
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		served.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	dial := func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = ours
		return ours, nil
	}
	var err error
	s.client, err = client.Connect(t.Context(), client.Config{Dial: dial, ConnectTimeout: patience, InitializeTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

func (s *stage) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.last.Close()
}

// start starts a server in a mode.
func (s *stage) start(t testing.TB, mode string, cfg mcpserver.Config) *mcpserver.Server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Client = s.client
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = patience
	}
	server := mcpserver.Start(cfg, mcpserver.Spec{
		Name: "fake", Plugin: "demo@1", Argv: []string{self}, Dir: protocol.NewPathURI(t.TempDir()),
		Env: map[string]string{fakeMode: mode, fakePIDs: s.pids, "EXTRA": "${HOME}"},
	})
	t.Cleanup(server.Close)
	return server
}

// started are the processes of all servers so far.
func (s *stage) started(t testing.TB) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(s.pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// gone checks that no process of a server is left.
func (s *stage) gone(t testing.TB) {
	t.Helper()
	for _, pid := range s.started(t) {
		// The agent tells of the end of a process group before the kernel has removed all of it.
		for end := time.Now().Add(patience); !isGone(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d is left", pid)
			}
		}
	}
}

// isGone tells whether there is no such process, or only what nobody has waited for: an orphan,
// where nobody is responsible for those.
func isGone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "Z")
}

// statuses collects what is told of servers.
type statuses struct {
	mu  sync.Mutex
	all []mcpserver.Status
}

func (s *statuses) add(st mcpserver.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, st)
}

func (s *statuses) states() (states string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.all {
		states += string(st.State) + " "
	}
	return strings.TrimSpace(states)
}

// bounded is a context for what may not take for ever.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("it takes too long"))
	t.Cleanup(cancel)
	return ctx
}
