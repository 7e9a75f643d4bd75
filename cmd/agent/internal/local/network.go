package local

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/httpclient"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// managedNetwork is the network of a command: a proxy with a policy.
type managedNetwork struct {
	networks egress.Networks
	network  *egress.Network
	tally    tally
}

// trustProxy makes the plan of the network. If the proxy has to look into requests, the sandbox shows the
// command the file with the proxy's certificate, which the command must not be able to write.
func (c *Command) trustProxy(door *confine.Door) error {
	plan, err := c.Network.plan(c.questions != nil)
	if err != nil {
		return err
	}
	c.network = &managedNetwork{}
	c.network.tally.plan = plan
	bundle, err := c.network.networks.Bundle(plan)
	if bundle == "" || err != nil {
		return err
	}
	door.Kept = c.network.networks.Folder
	policy, err := c.Profile.Compile()
	if err != nil || policy.Access(bundle) >= sandbox.Read {
		return nil // if there is an error, Enter returns it
	}
	c.Profile.Entries = append(slices.Clone(c.Profile.Entries), sandbox.Entry{Place: sandbox.PlacePath, Path: bundle, Access: sandbox.Read})
	return nil
}

// manage starts the network of the command.
func (c *Command) manage(held *confine.Held) (*managedNetwork, error) {
	n := c.network
	plan := n.tally.plan
	plan.Transparent = !c.Network.Plain
	n.networks.Set(egress.Operator{Upstream: egress.UpstreamOf(c.Upstream)})
	n.networks.Roots = sync.OnceValue[*x509.CertPool](httpclient.TrustedRoots)
	client := egress.Client{Saw: n.tally.add, Unreached: n.tally.unreached}
	if c.questions != nil {
		client.Ask = newAsker(c.questions.Ask).answer
	}
	var err error
	start := egress.Start{Environ: c.Sys.Environ, Gate: held.Gate(), OnHost: !held.Has(sandbox.NetNS), Enforced: true}
	if n.network, err = n.networks.Open(plan, start, client); err != nil {
		return nil, err
	}
	return n, nil
}

// environ is the environment of the command.
func (n *managedNetwork) environ() []string { return n.network.Environ() }

// refuses reports whether the network has refused something, so that close tells it.
func (n *managedNetwork) refuses() bool { return n != nil && n.tally.refuses() }

// close ends the network, and prints which hosts the command reached and which were refused. Without a network
// it does nothing.
func (n *managedNetwork) close(stderr io.Writer) error {
	if n == nil {
		return nil
	}
	n.network.Close() // it may be nil, if the network has not begun
	for _, line := range n.tally.lines() {
		program.Complain(stderr, line)
	}
	return n.networks.Close()
}

// asker asks the user, and remembers the answers that apply to the whole run.
type asker struct {
	ask  console.Ask
	turn chan struct{} // has a value while no question is asked

	answers map[protocol.PolicyRequest]protocol.PolicyChoice // guarded by turn
}

func newAsker(ask console.Ask) *asker {
	a := &asker{ask: ask, turn: make(chan struct{}, 1), answers: map[protocol.PolicyRequest]protocol.PolicyChoice{}}
	a.turn <- struct{}{}
	return a
}

// maxAnswers bounds the remembered answers.
const maxAnswers = 4096

// answer is the Ask of an [egress.Client].
func (a *asker) answer(ctx context.Context, _ string, params, result any) error {
	asked, ok := params.(*protocol.PolicyRequestParams)
	answer, ok2 := result.(*protocol.PolicyAnswer)
	if !ok || !ok2 {
		return errors.New("an unknown question")
	}
	r := asked.Request
	place := protocol.PolicyRequest{Host: r.Host, Port: r.Port, Method: r.Method, Path: r.Path} // whatever the protocol is
	select {
	case <-a.turn:
		defer func() { a.turn <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if choice, ok := a.answers[place]; ok {
		answer.Decision = choice
		return nil
	}
	keep := false
	text := fmt.Sprintf("the command wants to reach %s, port %d (%s)", r.Host, r.Port, r.Protocol)
	if r.Path != "" {
		text = "the command wants to send " + egress.RequestText(r.Protocol, r.Method, r.Host, r.Port, r.Path)
	}
	err := a.ask(ctx, []string{text, "[o]nce, [a]lways in this run, [N]o? "}, func(line string) (ok bool) {
		answer.Decision, keep, ok = answerOf(line)
		return ok
	})
	// An answer is about one method and path. It is not kept for a path that was cut, because others begin with
	// the same text.
	if err == nil && keep && !strings.HasSuffix(r.Path, "...") && len(a.answers) < maxAnswers {
		a.answers[place] = answer.Decision
	}
	return err
}

// AnswerHosts returns a function that answers an agent's questions about hosts. It asks the user.
func AnswerHosts(ask console.Ask) func(context.Context, string, protocol.PolicyRequest) protocol.PolicyChoice {
	a := newAsker(ask)
	return func(ctx context.Context, process string, r protocol.PolicyRequest) protocol.PolicyChoice {
		var answer protocol.PolicyAnswer
		if err := a.answer(ctx, "", &protocol.PolicyRequestParams{ProcessID: process, Request: r}, &answer); err != nil {
			return protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new("nobody has answered")}
		}
		return answer.Decision
	}
}

// Summary counts the hosts that a command of agent exec reached, and those that were refused. Its methods may
// be called concurrently.
type Summary struct{ tally tally }

// Decided notes a decision of the agent.
func (s *Summary) Decided(d protocol.PolicyDecision) {
	s.tally.add(netproxy.Report{
		Decision: rules.Action(d.Decision), Reason: d.Reason, Protocol: d.Protocol, Host: d.Host, Port: d.Port, Method: d.Method, Path: d.Path,
	})
}

// Print prints the lines that agent sandbox prints at its end.
func (s *Summary) Print(stderr io.Writer) {
	for _, line := range s.tally.lines() {
		program.Complain(stderr, line)
	}
}

// refusedByUser is the reason of a refusal by the user.
const refusedByUser = "refused by the user"

// answerOf reads an answer. keep says that it applies to the rest of the run; ok is false if the
// line is not an answer.
func answerOf(line string) (choice protocol.PolicyChoice, keep, ok bool) {
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "o", "once", "y", "yes":
		return protocol.PolicyChoice{Type: protocol.PolicyAllow}, false, true
	case "a", "always":
		return protocol.PolicyChoice{Type: protocol.PolicyAllow}, true, true
	case "n", "no", "", console.Interrupted:
		return protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(refusedByUser)}, true, true
	}
	return choice, false, false
}
