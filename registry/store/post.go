package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Subjects of what servers write to each other, in core NATS:
//
//	execagent.rendezvous.<node>.<about>   for that server
//	execagent.rendezvous                  for all servers
//
// The reply subject is whom it comes from. Each server subscribes once to all of
// its own, when it starts: nothing is lost because a subscription has not yet
// spread through a cluster, what one server sends to another keeps its order, and
// an idle executor costs nothing.
const postSubject = "execagent.rendezvous"

// Bounds of what has come from NATS and waits for the goroutine that takes it. More
// is lost, see [Post.Receive].
const (
	postPendingMessages = 1 << 16
	postPendingBytes    = 128 << 20
)

// Post is how the servers on one store write to each other: nothing of it is kept,
// and a letter is lost with the connection. Its methods may run at once.
type Post struct {
	conn     *nats.Conn
	node     string
	own, all *nats.Subscription
	statuses chan nats.Status
}

// Letter is what one server has written to another, or to all.
type Letter struct {
	About string // "" in a letter to all
	From  string
	Data  []byte // belongs to whoever takes the letter
}

// OpenPost subscribes to what is written to node and to all. Others can reach it
// once OpenPost has returned. The context must have a deadline.
func (st *Store) OpenPost(ctx context.Context, node string) (*Post, error) {
	p := &Post{conn: st.nc, node: node}
	var err error
	if p.own, err = p.subscribe(postSubject + "." + node + ".>"); err != nil {
		return nil, err
	}
	if p.all, err = p.subscribe(postSubject); err != nil {
		return nil, errors.Join(err, p.own.Unsubscribe())
	}
	if err := p.conn.FlushWithContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing: %w", err), p.own.Unsubscribe(), p.all.Unsubscribe())
	}
	p.statuses = p.conn.StatusChanged(nats.CONNECTED)
	return p, nil
}

func (p *Post) subscribe(subject string) (*nats.Subscription, error) {
	sub, err := p.conn.SubscribeSync(subject)
	if err == nil {
		err = sub.SetPendingLimits(postPendingMessages, postPendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return sub, nil
}

// Close ends the post. Whoever receives must have ended before.
func (p *Post) Close() error {
	p.conn.RemoveStatusListener(p.statuses)
	var err error
	for _, sub := range []*nats.Subscription{p.own, p.all} {
		if subErr := sub.Unsubscribe(); !errors.Is(subErr, nats.ErrConnectionClosed) {
			err = errors.Join(err, subErr)
		}
	}
	return err
}

// Receive passes on what is written to this server alone until ctx ends, and
// ReceiveAll what is written to all. Where take is too slow letters are lost: then
// they call missed.
func (p *Post) Receive(ctx context.Context, take func(Letter), missed func(error)) {
	p.receive(ctx, p.own, len(postSubject)+1+len(p.node)+1, take, missed)
}

// ReceiveAll is Receive for letters to all servers, this one's own among them.
func (p *Post) ReceiveAll(ctx context.Context, take func(Letter), missed func(error)) {
	p.receive(ctx, p.all, len(postSubject), take, missed)
}

// receive cuts off what the subjects of a subscription have in common.
func (p *Post) receive(ctx context.Context, sub *nats.Subscription, common int, take func(Letter), missed func(error)) {
	for {
		message, err := sub.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			take(Letter{About: message.Subject[common:], From: message.Reply, Data: message.Data})
		case errors.Is(err, nats.ErrSlowConsumer):
			missed(err)
		default: // ctx or the connection has ended
			return
		}
	}
}

// Send writes to a server. from is this node, perhaps with more behind a dot.
func (p *Post) Send(node, about, from string, data []byte) error {
	return p.conn.PublishRequest(postSubject+"."+node+"."+about, from, data)
}

// SendAll writes to all servers.
func (p *Post) SendAll(from string, data []byte) error {
	return p.conn.PublishRequest(postSubject, from, data)
}

// Connected tells whether others can be heard.
func (p *Post) Connected() bool { return p.conn.IsConnected() }

// Back brings a value each time that the connection is there again. Letters of
// both directions were lost meanwhile.
func (p *Post) Back() <-chan nats.Status { return p.statuses }
