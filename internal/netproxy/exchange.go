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

// An exchange is one plain request that may go out, and its answer. What is needed of the
// request's head is copied: the head itself is gone when its body is read.
type exchange struct {
	*client
	q         request
	method    string
	minor     int   // of the command's version
	last      bool  // the command's connection ends with it
	length    int64 // of the request's body
	body      *head.Body
	link      *link
	switching bool // the request asks for another protocol, which the command may have

	sent chan error // of the body, while it is sent beside the answer
}

// run sends the head and has the answer go back. It returns whether another request may follow.
func (x *exchange) run(out []byte) bool {
	defer func() { buffer.Recycle(out) }()
	out = append(out, x.body.Ahead()...)
	a, err := x.ask(out)
	if err != nil && x.link.used && x.length == 0 && rules.Reads(x.method) && isHungUp(err) {
		// The destination has hung up just when the request went out.
		if again, err2 := x.p.connect(x.p.ctx, x.q, x.link.place, x.link.addrs); err2 == nil {
			x.keep(again)
			x.link = again
			a, err = x.ask(out)
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

// send sends the rest of the request's body. If the command fails to send it, the exchange is
// over. If the destination does not take it, there may still be an answer.
func (x *exchange) send() {
	err := x.body.Forward(x.link.conn, x.length == head.Chunked)
	if _, ok := errors.AsType[*head.WriteError](err); err != nil && !ok {
		_ = x.link.raw.Close()
	}
	x.sent <- err
}

// wait reads the head of the next answer. Now and then it looks whether the command is still
// there.
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

// settle waits until the request's body is sent, which takes no time after an answer, as a
// rule. It returns the error of sending.
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
	_ = x.conn.SetReadDeadline(time.Now()) // both ends a send that waits
	_ = x.link.raw.Close()
	return <-x.sent
}

// fail answers a request that its destination does not answer.
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

// answer passes on the answer.
func (x *exchange) answer(a *head.Response) bool {
	chunked := a.Length == head.Chunked && x.minor > 0
	again := a.Minor > 0 && x.minor > 0 && !closes(a.Fields) && a.Length != head.UntilClose // on the link
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
		return false // what is missing of the answer is noticed by the end of the connection
	}
	if !keep || !x.body.Done() {
		x.hangUp()
		return false
	}
	return true
}

// isHungUp reports whether the other end had hung up before it has said anything.
func isHungUp(err error) bool {
	return err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isMalformed(err error) bool {
	_, ok := errors.AsType[head.MalformedError](err)
	return ok || err == head.ErrTooLarge
}
