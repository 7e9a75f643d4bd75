package netask

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"sync"

	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/helper/gate"
	"github.com/execagent/execagent/protocol"
)

// Network is that of a command that runs.
type Network struct {
	networks egress.Networks
	network  *egress.Network
	reports  egress.Reports
	asker    *asker
	tally    tally
}

// Config says how a network starts.
type Config struct {
	Words    Words
	Operator egress.Operator
	// Roots are as in [egress.Networks].
	Roots func() *x509.CertPool
	// Gate has the listeners of the proxy. OnHost tells that they are ports of this host.
	Gate   *gate.Gate
	OnHost bool
	// Environ is that of the command, without the network.
	Environ []string
	// Terminal is where the user is asked; nil: nobody is, and what is not allowed is refused.
	// The network closes it.
	Terminal io.ReadWriteCloser
}

// Start begins to serve the command.
func Start(cfg Config) (*Network, error) {
	n := &Network{}
	n.reports.Tell = func(d *protocol.PolicyDecision) bool {
		n.tally.add(d)
		return true
	}
	n.networks.Set(cfg.Operator)
	n.networks.Roots = cfg.Roots
	client := egress.Client{Reports: &n.reports}
	if cfg.Terminal != nil {
		n.asker = newAsker(cfg.Terminal)
		client.Ask = n.asker.answer
	}
	plan, err := cfg.Words.plan(n.asker != nil)
	if err != nil {
		return nil, errors.Join(err, n.asker.close())
	}
	start := egress.Start{Environ: cfg.Environ, Gate: cfg.Gate, OnHost: cfg.OnHost, Enforced: true}
	if n.network, err = n.networks.Open(plan, start, client); err != nil {
		return nil, errors.Join(err, n.asker.close())
	}
	return n, nil
}

// Environ is the environment of the command.
func (n *Network) Environ() []string { return n.network.Environ() }

// Close ends the network, and says what the command has reached, and what not.
func (n *Network) Close(stderr io.Writer) error {
	err := n.asker.close()
	n.network.Close()
	n.reports.Flush()
	n.reports.Close()
	for _, line := range n.tally.lines() {
		program.Complain(stderr, line)
	}
	return errors.Join(err, n.networks.Close())
}

// asker asks the user, one question at a time.
type asker struct {
	terminal io.ReadWriteCloser
	turn     chan struct{} // has a value while nobody asks
	closing  sync.Once
	reading  sync.WaitGroup

	// Both belong to who has the turn.
	answers map[protocol.PolicyRequest]protocol.PolicyChoice
	line    <-chan string // of a read that goes on; nil: none does
}

func newAsker(terminal io.ReadWriteCloser) *asker {
	a := &asker{terminal: terminal, turn: make(chan struct{}, 1), answers: map[protocol.PolicyRequest]protocol.PolicyChoice{}}
	a.turn <- struct{}{}
	return a
}

// answer is for [egress.Client].
func (a *asker) answer(ctx context.Context, _ string, params, result any) error {
	asked, ok := params.(*protocol.PolicyRequestParams)
	answer, ok2 := result.(*protocol.PolicyAnswer)
	if !ok || !ok2 {
		return errors.New("an unknown question")
	}
	place := protocol.PolicyRequest{Host: asked.Request.Host, Port: asked.Request.Port} // by whatever protocol
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
	choice, keep, err := a.ask(ctx, asked.Request)
	if err != nil {
		return err
	}
	if answer.Decision = choice; keep && len(a.answers) < maxAnswers {
		a.answers[place] = choice
	}
	return nil
}

// maxAnswers is how many answers for the whole run are remembered.
const maxAnswers = 4096

// close ends what waits for an answer. It may be called often, also on nil.
func (a *asker) close() (err error) {
	if a == nil {
		return nil
	}
	a.closing.Do(func() { err = a.terminal.Close() })
	a.reading.Wait()
	return err
}
