package suite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
)

// A step has one of the members but Conn, Bind, Again and Maybe; conformance/README.md explains
// them.
type step struct {
	Conn         string            `json:"conn"`
	Shell        string            `json:"sh"`
	Sleep        float64           `json:"sleep"` // seconds
	Connect      json.RawMessage   `json:"connect"`
	Drop         json.RawMessage   `json:"drop"`
	Send         json.RawMessage   `json:"send"`
	SendText     *string           `json:"sendText"`
	SendBinary   *string           `json:"sendBinary"`
	ExpectClosed json.RawMessage   `json:"expectClosed"`
	Expect       json.RawMessage   `json:"expect"`
	Bind         map[string]string `json:"bind"`
	Again        bool              `json:"again"`
	Maybe        bool              `json:"maybe"`
	networkStep
}

// A player replays one case over connections that it opens.
type player struct {
	dial  func(context.Context) (link, error)
	exact bool // see match
	conns map[string]*conn
	bound map[string]any
	// servers are those of a network case: there what is expected is compared with the next message of
	// its method, and not with the next one of any.
	servers *destinations
}

// play runs the steps in order and returns why the first of them failed.
func (p *player) play(ctx context.Context, steps []step) error {
	p.conns, p.bound = map[string]*conn{}, map[string]any{}
	defer p.close()
	if err := p.connect(ctx, "a"); err != nil {
		return err
	}
	for i, s := range steps {
		if err := p.step(ctx, s); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *player) close() {
	for _, c := range p.conns {
		c.close()
	}
}

func (p *player) connect(ctx context.Context, name string) error {
	if old := p.conns[name]; old != nil {
		old.close()
	}
	link, err := p.dial(ctx)
	if err != nil {
		return err
	}
	p.conns[name] = &conn{link: link, cause: func() error { return context.Cause(ctx) }, stop: context.AfterFunc(ctx, link.close)}
	return nil
}

func (p *player) step(ctx context.Context, s step) error {
	name := cmp.Or(s.Conn, "a")
	if is, err := p.networkStep(ctx, s, name); is {
		return err
	}
	switch {
	case s.Shell != "":
		if out, err := exec.CommandContext(ctx, "sh", "-c", s.Shell).CombinedOutput(); err != nil {
			return fmt.Errorf("sh %q: %w: %s", s.Shell, err, out)
		}
		return nil
	case s.Sleep != 0:
		select {
		case <-time.After(time.Duration(s.Sleep * float64(time.Second))):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case s.Connect != nil:
		return p.connect(ctx, name)
	}
	c := p.conns[name]
	if c == nil {
		// A further connection is opened by its first use.
		if err := p.connect(ctx, name); err != nil {
			return err
		}
		c = p.conns[name]
	}
	switch {
	case s.Drop != nil:
		c.close()
		return nil
	case s.Send != nil:
		return p.send(c, s.Send)
	case s.SendText != nil:
		return c.send([]byte(*s.SendText))
	case s.SendBinary != nil:
		c.talk.Sent([]byte(*s.SendBinary))
		return c.writeBinary([]byte(*s.SendBinary))
	case s.ExpectClosed != nil:
		m, err := c.receive()
		switch {
		case errors.Is(err, errEnded):
			return nil
		case err != nil:
			return fmt.Errorf("not closed: %w", err)
		}
		return fmt.Errorf("not closed but got %s", text(m))
	case s.Expect != nil:
		return p.expect(c, s)
	}
	return errors.New("step of an unknown kind")
}

// send writes the object as it stands in the file, unless it names a bound value.
func (p *player) send(c *conn, message json.RawMessage) error {
	if len(p.bound) != 0 {
		v, err := decode(message)
		if err != nil {
			return err
		}
		if message, err = json.Marshal(p.substitute(v)); err != nil {
			return err
		}
	}
	c.sent = message
	return c.send(message)
}

// substitute replaces every string "$name" by the value bound to name.
func (p *player) substitute(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = p.substitute(v[name])
		}
	case []any:
		for i := range v {
			v[i] = p.substitute(v[i])
		}
	case string:
		if name, ok := strings.CutPrefix(v, "$"); ok {
			if value, ok := p.bound[name]; ok {
				return value
			}
		}
	}
	return v
}

func (p *player) expect(c *conn, s step) error {
	v, err := decode(s.Expect)
	if err != nil {
		return err
	}
	want, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("expect is not an object: %s", s.Expect)
	}
	got, err := p.next(c, want)
	for err == nil && s.Again && !match(want, got, p.exact) {
		time.Sleep(10 * time.Millisecond) // between questions
		if err = c.send(c.sent); err == nil {
			got, err = p.next(c, want)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; expected %s", err, s.Expect)
	}
	if s.Maybe && !match(want, got, p.exact) {
		c.queue = slices.Insert(c.queue, 0, got)
		return nil
	}
	for name, path := range s.Bind {
		var value any = got
		for member := range strings.SplitSeq(path, ".") {
			object, _ := value.(map[string]any)
			value = object[member]
		}
		p.bound[name] = value
	}
	if !match(want, got, p.exact) {
		if split(want, got) {
			return errSplit
		}
		return fmt.Errorf("expected %s\n     got %s", s.Expect, text(got))
	}
	return nil
}

// errSplit means that output of a terminal came in more pieces than the case says. A terminal may
// hand over the first bytes of one write before the last ones, so the case says nothing then.
var errSplit = errors.New("the terminal has split a line")

// split reports whether got is output of a terminal and the beginning of the wanted output.
func split(want, got map[string]any) bool {
	chunk := func(m map[string]any) string {
		params, _ := m["params"].(map[string]any)
		if m["method"] != protocol.MethodProcessOutput || params["stream"] != "pty" {
			return ""
		}
		text, _ := params["chunk"].(string)
		data, _ := strictjson.StdBase64.Decode(text)
		return string(data)
	}
	part, whole := chunk(got), chunk(want)
	return part != "" && len(part) < len(whole) && strings.HasPrefix(whole, part)
}

// next returns the next message that is to be compared with want.
func (p *player) next(c *conn, want map[string]any) (map[string]any, error) {
	method, isCall := want["method"]
	return c.find(func(m map[string]any) bool {
		own, has := m["method"]
		// A verdict has no order among the events of a process (network.md 4.2).
		ordered := own != protocol.MethodNetworkPolicyDecision && method != protocol.MethodNetworkPolicyDecision
		return has == isCall && (ordered && p.servers == nil || own == method)
	})
}

// A conn is one connection. Its messages are in two queues: responses, and notifications and
// requests of the executor.
type conn struct {
	link
	cause  func() error // why the case has ended, which closes the link; nil: it has not
	stop   func() bool
	talk   contracttest.Conversation
	sent   json.RawMessage  // last
	queue  []map[string]any // received, of the kind that nobody asked for yet
	intake intake
}

// errEnded says that the executor has ended the connection.
var errEnded = errors.New("the executor has ended the connection")

func (c *conn) close() {
	c.stop()
	c.link.close()
}

// send sends a message.
func (c *conn) send(message []byte) error {
	c.talk.Sent(message)
	if err := c.write(message); err != nil {
		return cmp.Or(c.cause(), fmt.Errorf("%w (%w)", errEnded, err))
	}
	return nil
}

// receive returns the next message of any kind that is not queued. It is one that the contract has.
func (c *conn) receive() (map[string]any, error) {
	message, err := c.read()
	switch cause := c.cause(); {
	case cause != nil:
		return nil, cause
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", errEnded, err)
	}
	if err := c.intake.take(message); err != nil {
		return nil, err
	}
	if err := c.talk.Received(message); err != nil {
		return nil, fmt.Errorf("the contract: %w: %.1000s", err, message)
	}
	v, err := decode(message)
	object, ok := v.(map[string]any)
	if err != nil || !ok {
		object = map[string]any{"not an object": string(message)}
	}
	return object, nil
}

// text is a message that was decoded, as JSON.
func text(m map[string]any) []byte {
	data, _ := json.Marshal(m) // decoded from JSON: encodes again
	return data
}

// find returns the next message that is right, and queues those that come before it.
func (c *conn) find(right func(map[string]any) bool) (map[string]any, error) {
	for i, m := range c.queue {
		if right(m) {
			c.queue = append(c.queue[:i:i], c.queue[i+1:]...)
			return m, nil
		}
	}
	for {
		m, err := c.receive()
		if err != nil {
			return nil, err
		}
		if right(m) {
			return m, nil
		}
		c.queue = append(c.queue, m)
	}
}
