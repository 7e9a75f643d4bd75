package mcpserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/test/rig"
)

// scripted is a server that answers each method with a result that is given, or refuses.
type scripted struct {
	results map[string]string
	answers chan jsonrpc.Message
	life    context.Context
	cancel  context.CancelCauseFunc
}

func newScripted(results map[string]string) *scripted {
	s := &scripted{results: results, answers: make(chan jsonrpc.Message, 16)}
	s.life, s.cancel = context.WithCancelCause(context.Background())
	return s
}

func (s *scripted) Connect(context.Context) (mcp.Connection, error) { return s, nil }
func (s *scripted) SessionID() string                               { return "" }
func (s *scripted) cut(err error)                                   { s.cancel(err) }
func (s *scripted) shut()                                           { s.cut(ErrClosed) }

func (s *scripted) Close() error {
	s.cut(ErrClosed)
	return nil
}

func (s *scripted) Read(context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-s.answers:
		return m, nil
	case <-s.life.Done():
		return nil, context.Cause(s.life)
	}
}

func (s *scripted) Write(_ context.Context, m jsonrpc.Message) error {
	request, ok := m.(*jsonrpc.Request)
	if !ok || !request.IsCall() {
		return nil
	}
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%s}`, request.ID.Raw(), s.results[request.Method])
	answer, err := jsonrpc.DecodeMessage([]byte(text))
	if response, ok := answer.(*jsonrpc.Response); err != nil || !ok || response.ID != request.ID {
		answer = &jsonrpc.Response{ID: request.ID, Error: &jsonrpc.Error{Code: 1, Message: "no"}}
	}
	select {
	case s.answers <- answer:
	case <-s.life.Done():
	}
	return nil
}

// hello is how a server answers that means well.
const hello = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`

// FuzzAnswers: whatever a server answers, neither we nor the SDK do anything worse than fail.
func FuzzAnswers(f *testing.F) {
	for _, seed := range [][3]string{
		{hello, `{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`, `{"content":[{"type":"text","text":"x"}]}`},
		{hello, `{"tools":[null,{},{"name":"t","inputSchema":null,"annotations":null}]}`, `{"content":[null]}`},
		{hello, `null`, `null`},
		{`null`, `{}`, `{}`},
		{`{"protocolVersion":"2025-06-18"}`, `{}`, `{}`},
		{`{"protocolVersion":"2025-06-18","capabilities":null,"serverInfo":null}`, `{}`, `{}`},
		{hello, `{"tools":5}`, `{"content":5}`},
		{hello, `{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"a":{"x-mcp-header":"b"}}}}]}`, `{"resultType":"inputRequired","inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}`},
		{hello, `{"tools":[]}`, `{"content":[{"type":"resource","resource":{"blob":"%%"}},{"type":"resource_link"},{"type":"image"},{"type":"x"}],"structuredContent":[],"isError":true}`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, initialize, list, call string) {
		s := startOver(func() link {
			return newScripted(map[string]string{"initialize": initialize, "tools/list": list, "tools/call": call})
		}, Config{StartTimeout: time.Minute, CallTimeout: time.Minute}, Spec{Name: "x", Plugin: "p"})
		defer s.Close()
		if err := s.Wait(t.Context()); err != nil {
			return
		}
		for _, tool := range s.Tools() {
			rig.Is(t, isToolName(tool.Name), true, "%q is a name", tool.Name)
		}
		r, err := s.Call(t.Context(), "t", map[string]any{"a": "b"})
		rig.Is(t, err == nil && r == nil, false, "there is no result, and no error")
	})
}

// TestTimeouts: what a server declares comes before what holds for all, and makes it another one.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cfg         Config
		spec        Spec
		start, call time.Duration
	}{
		{Config{}, Spec{}, startTimeout, callTimeout},
		{Config{StartTimeout: 1, CallTimeout: 2}, Spec{}, 1, 2},
		{Config{StartTimeout: 1, CallTimeout: 2}, Spec{StartTimeout: 3}, 3, 2},
		{Config{}, Spec{CallTimeout: 4}, startTimeout, 4},
	} {
		tt.cfg.complete(&tt.spec)
		if tt.cfg.StartTimeout != tt.start || tt.cfg.CallTimeout != tt.call {
			t.Errorf("%+v: %v and %v, want %v and %v", tt.spec, tt.cfg.StartTimeout, tt.cfg.CallTimeout, tt.start, tt.call)
		}
		if none := tt.spec.StartTimeout == 0 && tt.spec.CallTimeout == 0; tt.spec.Equal(&Spec{}) != none || !tt.spec.Equal(&tt.spec) {
			t.Errorf("%+v is equal to what it is not, or not to itself", tt.spec)
		}
	}
}
