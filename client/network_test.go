package client_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestNetwork: a client answers what its server asks, however many questions wait, and hears of
// verdicts; without functions it refuses and hears nothing.
func TestNetwork(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		release := make(chan struct{})
		var heard []protocol.PolicyDecision
		connect(t, client.Config{Dial: f.dial, Network: client.Network{
			Decide: func(ctx context.Context, id string, r protocol.PolicyRequest) protocol.PolicyChoice {
				select {
				case <-release:
				case <-ctx.Done():
				}
				if r.Port == 443 {
					return protocol.PolicyChoice{Type: protocol.PolicyAllow}
				}
				return protocol.PolicyChoice{Type: protocol.PolicyAsk, Reason: new(id + " to " + r.Host)}
			},
			Decided: func(d protocol.PolicyDecision) { heard = append(heard, d) },
		}})
		ask := func(id int, params string) {
			f.current().send([]byte(`{"id":` + string(rune('0'+id)) + `,"method":"network/policyRequest","params":` + params + `}`))
		}
		for range 200 { // more than run at once
			ask(9, `{"processId":"p","request":{"protocol":"http","host":"a.org","port":443}}`)
		}
		ask(1, `{"processId":"p","request":{"protocol":"http","host":"b.org","port":80}}`)
		ask(2, `{"processId":"p"}`)
		d := protocol.PolicyDecision{ProcessID: "p", Timestamp: "t", Scope: "domain", Decision: "allow", Source: "decider", Reason: "not_allowed",
			Protocol: "http", Host: "b.org", Port: 80, Method: "GET", Client: "127.0.0.1:1", PolicyOverride: true}
		f.current().notify(protocol.MethodNetworkPolicyDecision, d)
		synctest.Wait()
		rig.Same(t, "the result", []protocol.PolicyDecision{d}, heard)
		close(release)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		rig.Is(t, len(f.answers), 202, "answers")
		for _, want := range []string{
			`{"id":9,"result":{"decision":{"type":"allow"}}}`,
			`{"id":1,"result":{"decision":{"type":"ask","reason":"p to b.org"}}}`,
			"{\"error\":{\"code\":-32602,\"message\":\"missing field `request`\"},\"id\":2}",
		} {
			rig.Is(t, slices.Contains(f.answers, want), true, "no answer %s in %q", want, f.answers[max(0, len(f.answers)-3):])
		}
	})
}

func TestNetworkWithoutFunctions(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		f.connect(t)
		f.current().send([]byte(`{"id":1,"method":"network/policyRequest","params":{"processId":"p","request":{"protocol":"http","host":"h","port":1}}}`))
		f.current().notify(protocol.MethodNetworkPolicyDecision, protocol.PolicyDecision{})
		synctest.Wait()
		f.mu.Lock()
		want := []string{`{"id":1,"result":{"decision":{"type":"deny","reason":"this client decides nothing"}}}`}
		rig.Same(t, "answers", want, f.answers)
		f.mu.Unlock()
	})
}

// TestApprovals: a client that decides says so, answers each question, and hears when one is
// closed.
func TestApprovals(t *testing.T) {
	faked(t, func(t *testing.T, f *fake) {
		connect(t, client.Config{Dial: f.dial, Approvals: client.Approvals{
			Decide: func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer {
				if q.ApprovalID == "waits" {
					<-ctx.Done()
					return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}
				}
				return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalAcceptWithRule, Prefix: q.Argv[:1]}
			},
		}})
		ask := func(id, approval string) {
			f.current().send([]byte(`{"id":` + id + `,"method":"process/execApproval","params":{"processId":"p","approvalId":"` + approval +
				`","kind":"exec","argv":["ls","x"],"exe":"/bin/ls","cwd":"/","reason":"r","matchedRules":[],"afterSeq":0,"timeoutMs":1000}}`))
		}
		ask("1", "waits")
		ask("2", "now")
		synctest.Wait()
		f.current().notify(protocol.MethodExecApprovalClosed, protocol.ExecApprovalClosed{ProcessID: "p", ApprovalID: "waits", Reason: "timeout"})
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		want := []string{`{"id":2,"result":{"decision":{"acceptWithRule":{"prefix":["ls"]}}}}`, `{"id":1,"result":{"decision":"decline"}}`}
		rig.Same(t, "answers", want, f.answers)
		handshake := string(f.requests[0].Params)
		rig.Is(t, strings.Contains(handshake, `"subcommandApprovals":true`), true, "it is in the handshake %s", handshake)
	})
}
