package local

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/protocol"
)

// Network is that of a command that runs.
type Network struct {
	networks egress.Networks
	network  *egress.Network
	reports  egress.Reports
	tally    tally
}

// NetworkConfig says how a network starts.
type NetworkConfig struct {
	Words    NetworkWords
	Operator egress.Operator
	// Roots are as in [egress.Networks].
	Roots func() *x509.CertPool
	// Gate has the listeners of the proxy. OnHost tells that they are ports of this host.
	Gate   *gate.Gate
	OnHost bool
	// Environ is that of the command, without the network.
	Environ []string
	// Terminal is where the user is asked; nil: nobody is, and what is not allowed is refused. It
	// is closed before the network.
	Terminal *console.Terminal
}

// StartNetwork begins to serve the command.
func StartNetwork(cfg NetworkConfig) (*Network, error) {
	n := &Network{}
	n.reports.Tell = func(d *protocol.PolicyDecision) bool {
		n.tally.add(d)
		return true
	}
	n.networks.Set(cfg.Operator)
	n.networks.Roots = cfg.Roots
	client := egress.Client{Reports: &n.reports}
	if cfg.Terminal != nil {
		client.Ask = newAsker(cfg.Terminal).answer
	}
	plan, err := cfg.Words.plan(cfg.Terminal != nil)
	if err != nil {
		return nil, err
	}
	start := egress.Start{Environ: cfg.Environ, Gate: cfg.Gate, OnHost: cfg.OnHost, Enforced: true}
	if n.network, err = n.networks.Open(plan, start, client); err != nil {
		return nil, err
	}
	return n, nil
}

// Environ is the environment of the command.
func (n *Network) Environ() []string { return n.network.Environ() }

// Close ends the network, and says what the command has reached, and what not. It may be called on
// nil.
func (n *Network) Close(stderr io.Writer) error {
	if n == nil {
		return nil
	}
	n.network.Close()
	n.reports.Flush()
	n.reports.Close()
	for _, line := range n.tally.lines() {
		program.Complain(stderr, line)
	}
	return n.networks.Close()
}

// asker asks the user, and remembers what they have said for the whole run.
type asker struct {
	terminal *console.Terminal
	turn     chan struct{} // has a value while nobody asks

	answers map[protocol.PolicyRequest]protocol.PolicyChoice // who has the turn owns it
}

func newAsker(terminal *console.Terminal) *asker {
	a := &asker{terminal: terminal, turn: make(chan struct{}, 1), answers: map[protocol.PolicyRequest]protocol.PolicyChoice{}}
	a.turn <- struct{}{}
	return a
}

// maxAnswers is how many answers for the whole run are remembered.
const maxAnswers = 4096

// answer is for [egress.Client].
func (a *asker) answer(ctx context.Context, _ string, params, result any) error {
	asked, ok := params.(*protocol.PolicyRequestParams)
	answer, ok2 := result.(*protocol.PolicyAnswer)
	if !ok || !ok2 {
		return errors.New("an unknown question")
	}
	r := asked.Request
	place := protocol.PolicyRequest{Host: r.Host, Port: r.Port} // by whatever protocol
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
	err := a.terminal.Ask(ctx, []string{text, "[o]nce, [a]lways in this run, [N]o? "}, func(line string) (ok bool) {
		answer.Decision, keep, ok = answerOf(line)
		return ok
	})
	if err == nil && keep && len(a.answers) < maxAnswers {
		a.answers[place] = answer.Decision
	}
	return err
}

// refusedByUser is the reason of a user's no.
const refusedByUser = "refused by the user"

// answerOf reads an answer, and whether it is for the rest of the run; ok is false for what is
// none.
func answerOf(line string) (choice protocol.PolicyChoice, keep, ok bool) {
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "o", "once", "y", "yes":
		return protocol.PolicyChoice{Type: protocol.PolicyAllow}, false, true
	case "a", "always":
		return protocol.PolicyChoice{Type: protocol.PolicyAllow}, true, true
	case "n", "no", "", console.QuestionInterrupted:
		return protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(refusedByUser)}, true, true
	}
	return choice, false, false
}
