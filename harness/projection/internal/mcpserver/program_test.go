package mcpserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/harness/projection/internal/fakemcp"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// say calls the tool of the fake server.
func say(t testing.TB, s *mcpserver.Server, text string) (string, error) {
	t.Helper()
	r, err := s.Call(rig.Context(t), "echo", map[string]any{"text": text})
	if err != nil {
		return "", err
	}
	if len(r.Content) != 1 {
		t.Fatalf("the result is %+v", r)
	}
	return r.Content[0].(*mcp.TextContent).Text, nil
}

// wantSay calls the tool, which has to answer with a text.
func wantSay(t testing.TB, s *mcpserver.Server, want string) {
	t.Helper()
	text, err := say(t, s, "hello")
	rig.Check(t, err)
	rig.Is(t, text, want, "the tool says")
}

// TestProgram: a server is started with what it was declared with, tells its tools, answers, and
// is gone after Close, also when the connection was cut in between.
func TestProgram(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"good", "greeting", "questions", "stubborn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			var told statuses
			server := s.start(t, mode, mcpserver.Config{Notify: told.add})
			rig.Must(t, server.Wait(rig.Context(t)))
			tools := server.Tools()
			rig.Is(t, len(tools) == 1 && tools[0].Name == "echo", true, "the tools are %+v", tools)
			const want = "hello of demo@1 with ${HOME}"
			wantSay(t, server, want)
			list, err := s.client.Processes(t.Context())
			if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].ProcessID, "mcp-stdio-") {
				t.Errorf("the processes are %+v, %v", list, err)
			}
			for range 3 {
				s.cut()
				wantSay(t, server, want)
			}
			rig.Is(t, told.states(), "starting ready", "the states")
			rig.Is(t, mode == "stubborn" || len(fakemcp.Started(t, s.pids)) == 1, true, "there was one start")
			server.Close()
			fakemcp.Gone(t, fakemcp.Started(t, s.pids)...)
			rig.Is(t, rig.Err(say(t, server, "hello")), mcpserver.ErrClosed, "after Close the error")
			rig.Is(t, told.states(), "starting ready", "after Close the states")
		})
	}
}

// TestHostile: whatever a server does wrong, its status says so, and nothing of it is left.
func TestHostile(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"start":         "the server has exited with code 3: dying in start",
		"initialize":    "the server has exited with code 3: dying in initialize",
		"tools/list":    "the server has exited with code 3: dying in tools/list",
		"idle":          "the server has exited with code 3: dying in idle",
		"version":       "1999-01-01",
		"refusal":       "I do not know that version",
		"silent":        "no answer within 2s",
		"line":          "a message of the server is longer than",
		"requests":      "requests of the server wait for an answer",
		"notifications": "that nobody has asked for",
		"answers":       "that nobody has asked for",
		"stderr":        "that nobody has asked for",
		"empty pages":   "the server has more than 2048 tools",
		"values":        "or more than 8388608 bytes",
		"many values":   "a message of the server has more than 524288 values",
		"pages":         "the server has more than 2048 tools",
		"large":         "or more than 8388608 bytes",
	} {
		t.Run(strings.ReplaceAll(mode, "/", " "), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			failed := make(chan error, 1)
			cfg := mcpserver.Config{Notify: func(st mcpserver.Status) {
				if st.State == mcpserver.Failed {
					failed <- st.Err
				}
			}}
			if mode == "silent" {
				cfg.StartTimeout = 2 * time.Second
			}
			server := s.start(t, mode, cfg)
			err := <-failed
			rig.Is(t, strings.Contains(err.Error(), want), true, "the error is %v, want %s", err, want)
			rig.Is(t, len(server.Tools()), 0, "tools")
			rig.Is(t, rig.Err(say(t, server, "hello")) != nil, true, "no tool can be called")
			server.Close()
			fakemcp.Gone(t, fakemcp.Started(t, s.pids)...)
		})
	}
}

// TestDyingInCall: the call fails with what the server has said last, and so does the server.
func TestDyingInCall(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := s.start(t, "tools/call", mcpserver.Config{})
	_, err := say(t, server, "hello")
	exit, ok := errors.AsType[*mcpserver.ExitError](err)
	rig.Is(t, ok && exit.Code == 3 && exit.Stderr == "dying in tools/call", true, "the error is %v", err)
	server.Close()
	fakemcp.Gone(t, fakemcp.Started(t, s.pids)...)
	rig.Is(t, len(fakemcp.Started(t, s.pids)), 1, "starts")
}

// TestMute: a call that is never answered ends with its bound, with its context and with Close,
// and the server goes on after the first two.
func TestMute(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := s.start(t, "mute", mcpserver.Config{CallTimeout: 50 * time.Millisecond})
	rig.Is(t, rig.Err(say(t, server, "hello")), context.DeadlineExceeded, "the error")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	rig.Is(t, rig.Err(server.Call(ctx, "echo", nil)), why, "the error")
	rig.Is(t, server.Status().State, mcpserver.Ready, "the status")

	endless := s.start(t, "mute", mcpserver.Config{CallTimeout: rig.Patience})
	rig.Must(t, endless.Wait(rig.Context(t)))
	called := make(chan error)
	go func() {
		_, err := endless.Call(context.Background(), "echo", nil)
		called <- err
	}()
	endless.Close()
	rig.Is(t, <-called, mcpserver.ErrClosed, "the error")
}

// TestListChanged: a server that says that its tools have changed is asked again.
func TestListChanged(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := s.start(t, "change", mcpserver.Config{})
	rig.Must(t, rig.Err(say(t, server, "hello")))
	rig.Until(t, "there are two tools", func() bool { return len(server.Tools()) == 2 })
}

// TestCannotStart: a program that is not there is named, with the error of the executor.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := mcpserver.Start(mcpserver.Config{Client: s.client}, mcpserver.Spec{
		Name: "none", Argv: []string{"/no/such/program"}, Dir: protocol.NewPathURI("/"),
	})
	defer server.Close()
	if err := server.Wait(rig.Context(t)); err == nil || !strings.HasPrefix(err.Error(), `starting ["/no/such/program"]: `) || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("the error is %v", err)
	}
}

// TestLostClient: a server whose client is gone has failed.
func TestLostClient(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := s.start(t, "good", mcpserver.Config{})
	rig.Must(t, server.Wait(rig.Context(t)))
	_ = s.client.Close()
	rig.Until(t, "the server has failed", func() bool { return server.Status().State == mcpserver.Failed })
	server.Close()
}

// TestLostStart: a program whose start is lost with the connection is started again, and the first
// one does not stay.
func TestLostStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.cutAt(`"method":"process/start"`)
	server := s.start(t, "good", mcpserver.Config{})
	rig.Check(t, rig.Err(say(t, server, "hello")))
	server.Close()
	fakemcp.Gone(t, fakemcp.Started(t, s.pids)...)
}

// TestLostEnd: a server is gone after Close although the connection was lost just then.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"process/closeStdin", "process/terminate"} {
		t.Run(strings.ReplaceAll(method, "/", " "), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			server := s.start(t, "stubborn", mcpserver.Config{})
			rig.Must(t, server.Wait(rig.Context(t)))
			s.cutAt(`"method":"` + method + `"`)
			server.Close()
			fakemcp.Gone(t, fakemcp.Started(t, s.pids)...)
		})
	}
}
