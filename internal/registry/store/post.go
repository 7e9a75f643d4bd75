package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Subjects of the letters between servers, in core NATS:
//
//	execagent.rendezvous.<node>.<about>   for one server
//	execagent.rendezvous                  for all servers
//
// The reply subject names the sender. At its start, each server subscribes to all its own
// subjects with one subscription. So no letter is lost because a subscription has not
// yet spread through a cluster. The letters of one server to another keep their order,
// and an idle executor costs nothing.
const postSubject = "execagent.rendezvous"

// Bounds of the letters that have come from NATS and wait for the goroutine that receives
// them. Letters beyond these bounds are lost, see [Post].
const (
	postPendingMessages = 1 << 16
	postPendingBytes    = 128 << 20
)

// Post sends and receives the letters between the servers on one store. No letter is stored:
// a letter that is in flight when the connection ends is lost. The methods may be called
// concurrently. But Receive and ReceiveAll may each run in only one goroutine, and Close must
// be called after both have returned.
type Post interface {
	// Receive calls take with each letter to this server alone, one after the other, until
	// ctx ends or the connection ends forever. Letters are lost if take is too slow; then
	// Receive calls missed.
	Receive(ctx context.Context, take func(Letter), missed func(error))
	// ReceiveAll is Receive for the letters to all servers, including those of this server.
	ReceiveAll(ctx context.Context, take func(Letter), missed func(error))
	// Send sends a letter to one server, and does not wait until the letter arrives. It fails
	// while there is no connection. from is this node, and may have a dot and more text
	// behind it.
	Send(node, about, from string, data []byte) error
	// SendAll is Send to all servers.
	SendAll(from string, data []byte) error
	// Connected reports whether there is a connection. Without it no letter arrives.
	Connected() bool
	// Back returns a channel that gets a value each time that the connection has come back.
	// Letters in both directions may have been lost before.
	Back() <-chan nats.Status
	// Close ends the subscriptions. Receive and ReceiveAll must have returned before.
	Close() error
}

// post is the Post of one connection to NATS.
type post struct {
	conn     *nats.Conn
	node     string
	own, all *nats.Subscription
	pending  int // bytes that may wait in each subscription
	statuses chan nats.Status
}

// Letter is a message of one server to another server, or to all.
type Letter struct {
	About string // the end of the subject; "" in a letter to all
	From  string // the argument from of Send or SendAll
	Data  []byte // belongs to the function that takes the letter
}

// OpenPost subscribes to the letters to node and to the letters to all servers. Other servers
// can reach node once OpenPost has returned. In each subscription letters of up to pending
// bytes may wait, but not more than postPendingBytes. ctx must have a deadline. The caller
// closes the post.
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

// receive is Receive for a subscription. It cuts off the first common bytes of each subject,
// which are the same in all subjects.
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
