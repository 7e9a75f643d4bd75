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
// The reply subject names the sender. Each server subscribes to all its own subjects with
// one subscription, when it starts. So no letter is lost because a subscription has not
// yet spread through a cluster, the letters of one server to another keep their order,
// and an idle executor costs nothing.
const postSubject = "execagent.rendezvous"

// Bounds of the letters that have come from NATS and wait for the goroutine that takes
// them. Letters beyond that are lost, see [Post].
const (
	postPendingMessages = 1 << 16
	postPendingBytes    = 128 << 20
)

// Post sends and receives the letters that the servers on one store write to each other.
// No letter is stored: one that is under way when the connection ends is lost. The methods
// may run at once; Receive and ReceiveAll each in one goroutine, and Close after both.
type Post interface {
	// Receive calls take with each letter to this server alone, one after the other, until
	// ctx or the connection ends for good. Letters are lost if take is too slow; then Receive
	// calls missed.
	Receive(ctx context.Context, take func(Letter), missed func(error))
	// ReceiveAll is Receive for the letters to all servers, also those that this one sends.
	ReceiveAll(ctx context.Context, take func(Letter), missed func(error))
	// Send writes to one server, and does not wait until the letter is there. It fails while
	// there is no connection. from is this node, perhaps with more behind a dot.
	Send(node, about, from string, data []byte) error
	// SendAll writes to all servers, as Send does to one.
	SendAll(from string, data []byte) error
	// Connected reports whether there is a connection, without which no server can be heard.
	Connected() bool
	// Back returns a channel with a value for each time that the connection has come back.
	// Letters of both directions may have been lost before.
	Back() <-chan nats.Status
	// Close ends the subscriptions. Receive and ReceiveAll must have returned before.
	Close() error
}

// post is the Post of one connection to NATS.
type post struct {
	conn     *nats.Conn
	node     string
	own, all *nats.Subscription
	pending  int // bytes that may wait in each of them
	statuses chan nats.Status
}

// Letter is what one server has written to another, or to all.
type Letter struct {
	About string // the end of the subject; "" in a letter to all
	From  string // what the sender has given to Send or SendAll
	Data  []byte // belongs to whoever takes the letter
}

// OpenPost subscribes to the letters to node and to those to all. Other servers can reach
// node once OpenPost has returned. Letters of up to pending bytes wait to be received, or
// of postPendingBytes if that is less. The context must have a deadline. The caller closes
// the post.
func (st *Store) OpenPost(ctx context.Context, node string, pending int64) (Post, error) {
	p := &post{conn: st.nc, node: node, pending: int(min(pending, postPendingBytes))}
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

func (p *post) subscribe(subject string) (*nats.Subscription, error) {
	sub, err := p.conn.SubscribeSync(subject)
	if err == nil {
		err = sub.SetPendingLimits(postPendingMessages, p.pending)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return sub, nil
}

func (p *post) Close() error {
	p.conn.RemoveStatusListener(p.statuses)
	var err error
	for _, sub := range []*nats.Subscription{p.own, p.all} {
		if subErr := sub.Unsubscribe(); !errors.Is(subErr, nats.ErrConnectionClosed) {
			err = errors.Join(err, subErr)
		}
	}
	return err
}

func (p *post) Receive(ctx context.Context, take func(Letter), missed func(error)) {
	p.receive(ctx, p.own, len(postSubject)+1+len(p.node)+1, take, missed)
}

func (p *post) ReceiveAll(ctx context.Context, take func(Letter), missed func(error)) {
	p.receive(ctx, p.all, len(postSubject), take, missed)
}

// receive is Receive for a subscription. It cuts off the first bytes of each subject,
// which all have in common.
func (p *post) receive(ctx context.Context, sub *nats.Subscription, common int, take func(Letter), missed func(error)) {
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

func (p *post) Send(node, about, from string, data []byte) error {
	return named(p.conn.PublishRequest(postSubject+"."+node+"."+about, from, data))
}

func (p *post) SendAll(from string, data []byte) error {
	return named(p.conn.PublishRequest(postSubject, from, data))
}

func (p *post) Connected() bool { return p.conn.IsConnected() }

func (p *post) Back() <-chan nats.Status { return p.statuses }
