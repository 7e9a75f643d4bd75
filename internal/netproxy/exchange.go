package netproxy

import (
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// An exchange is one plain request that was allowed, and its answer. The exchange copies the parts
// of the request's head that it needs, because reading the body overwrites the head.
type exchange struct {
	*client
	q         request
	method    string
	minor     int   // minor HTTP version of the command
	last      bool  // the command's connection ends after this exchange
	length    int64 // length of the request's body
	body      *head.Body
	link      *link
	switching bool // the request asks for another protocol, and the proxy permits the change

	stands *standing

	sent chan error // result of sending the body in parallel with the answer; nil if nothing is sent in parallel
}

// run sends the head and forwards the answer. It reports whether another request may follow.
func (x *exchange) run(out []byte) bool {
	defer func() { buffer.Recycle(out) }()
	out = append(out, x.body.Ahead()...)
	a, err := x.ask(out)
	if err != nil && x.link.used && x.length == 0 && rules.Reads(x.method) && isHungUp(err) {
		// The destination closed the connection at the moment when the request was sent.
		if again, err2 := x.p.connect(x.p.ctx, x.q, x.link.place, x.link.addrs); err2 == nil {
			x.keep(again)
			x.link = again
			if x.stands.over(); x.sends(again) {
				a, err = x.ask(out)
			}
		}
	}
	if err != nil {
		return x.fail()
	}
	if a.Status == 101 {
		x.relay(a)
		return false
	}
	return x.answer(a)
}

// sends reports whether the request may be sent on a link. From then on the link ends too, if the policy does
// not allow the request any more.
func (x *exchange) sends(l *link) bool {
	old := x.stands
	x.stands = &standing{q: old.q, addrs: old.addrs, answered: old.answered, end: func() {
		old.end()
		_ = l.raw.Close()
	}}
	return x.p.begins(x.stands)
}

// ask sends the request, and returns the head of its answer.
func (x *exchange) ask(out []byte) (*head.Response, error) {
	if _, err := x.link.conn.Write(out); err != nil {
		return nil, err
	}
	if !x.body.Done() {
		x.sent = make(chan error, 1)
		go x.send()
	}
	for range maxInterim {
		a, err := x.wait()
		if err != nil || a.Status >= 200 {
			return a, err
		}
		if a.Status == 101 {
			if x.switching {
				return a, nil
			}
			return nil, errSwitched
		}
		if x.minor > 0 {
			interim := appendResponse(buffer.Get(outgoing), a, true, false)
			_, err = x.conn.Write(interim)
			buffer.Recycle(interim)
			if err != nil {
				return nil, err
			}
		}
	}
	return nil, errInterim
}

var (
	errSwitched = errors.New("reading an answer: it changes the protocol, which nobody has asked for")
	errInterim  = errors.New("reading an answer: too many before it")
)

// send sends the rest of the request's body. If the body cannot be read from the command, send
// closes the link, which ends the exchange. If the destination does not take the body, the
// destination may still answer.
func (x *exchange) send() {
	err := x.body.Forward(x.link.conn, x.length == head.Chunked)
	if _, ok := errors.AsType[*head.WriteError](err); err != nil && !ok {
		_ = x.link.raw.Close()
	}
	x.sent <- err
}

// wait reads the head of the next answer. From time to time it checks whether the command has hung
// up.
func (x *exchange) wait() (*head.Response, error) {
	for {
		if err := x.link.conn.SetReadDeadline(time.Now().Add(x.p.times.patience)); err != nil {
			return nil, err
		}
		a, err := x.link.in.Response(x.method)
		if isTimeout(err) && !x.gone() {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a, x.link.conn.SetReadDeadline(time.Time{})
	}
}

// settle waits until the request's body is sent, and returns the error of sending. After an answer
// this normally takes no time. If patient is false or the time is over, settle ends the sending.
func (x *exchange) settle(patient bool) error {
	if x.sent == nil {
		return nil
	}
	if patient {
		timer := time.NewTimer(x.p.times.drain)
		defer timer.Stop()
		select {
		case err := <-x.sent:
			return err
		case <-timer.C:
		}
	}
	_ = x.conn.SetReadDeadline(time.Now()) // each of these two calls ends a send that is blocked
	_ = x.link.raw.Close()
	return <-x.sent
}

// fail answers a request if the destination does not answer. It reports whether another request may
// follow.
func (x *exchange) fail() bool {
	err := x.settle(false)
	x.keep(nil)
	a := failure()
	if isMalformed(err) {
		a = malformed("")
	}
	if x.last || !x.body.Done() {
		x.dismiss(x.method, a)
		return false
	}
	_, err = x.conn.Write(a.append(nil, x.method, true))
	return err == nil
}

// answer forwards the answer to the command. It reports whether another request may follow.
func (x *exchange) answer(a *head.Response) bool {
	chunked := a.Length == head.Chunked && x.minor > 0
	again := a.Minor > 0 && x.minor > 0 && !closes(a.Fields) && a.Length != head.UntilClose // whether the link can be used again
	keep := !x.last && a.Length >= 0
	if a.Length == head.Chunked {
		keep = !x.last && chunked
	}
	body := x.link.in.Body(a.Length)
	out := appendResponse(buffer.Get(outgoing), a, keep, x.minor == 0)
	out = append(out, body.Ahead()...)
	_, err := x.conn.Write(out)
	buffer.Recycle(out)
	if err == nil && !body.Done() {
		if chunked {
			err = body.Forward(x.conn, true)
		} else {
			err = body.Move(x.conn)
		}
	}
	unsent := x.settle(err == nil)
	x.link.used = true
	x.link.in.Trim()
	if err != nil || unsent != nil || !again || len(x.link.in.Buffered()) > 0 || x.link.conn != x.link.raw && x.inside == nil {
		x.keep(nil)
	}
	if err != nil {
		return false // the command notices a truncated answer by the end of the connection
	}
	if !keep || !x.body.Done() {
		x.hangUp()
		return false
	}
	return true
}

// isHungUp reports whether the other end closed the connection before it sent a byte.
func isHungUp(err error) bool {
	return err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isMalformed(err error) bool {
	_, ok := errors.AsType[head.MalformedError](err)
	return ok || err == head.ErrTooLarge
}
