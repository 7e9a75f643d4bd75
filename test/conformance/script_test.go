package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/contracttest"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// A script is one line of a file of cases.
type script struct {
	Name string `json:"name"`
	// Home: the case has an agent of its own, and Before fills its folders.
	Home   bool   `json:"home"`
	Before string `json:"before"`
	Area   string `json:"area"`
	Steps  []step `json:"steps"`
}

// A step has one of the members but Conn, Bind, Again and Maybe; the first line of cases.jsonl
// explains them.
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

// loadScripts reads the cases; @DIR@ is still in them.
func loadScripts(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines [][]byte
	for line := range bytes.Lines(data) {
		lines = append(lines, bytes.TrimSpace(line))
	}
	return lines[1:], nil // the first line is the description of the format
}

// A player replays one script over connections to the agent at url.
type player struct {
	url   string
	conns map[string]*conn
	bound map[string]any
	// servers are those of a network case: there what is expected is compared with the next message of
	// its method, and not with the next one of any.
	servers *destinations
}

// play runs the steps in order and returns why the first of them failed.
func play(ctx context.Context, url string, steps []step, servers *destinations) error {
	p := &player{url: url, conns: map[string]*conn{}, bound: map[string]any{}, servers: servers}
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
		c.Close()
	}
}

func (p *player) connect(ctx context.Context, name string) error {
	if old := p.conns[name]; old != nil {
		old.Close()
	}
	c, err := dial(ctx, p.url)
	if err != nil {
		return err
	}
	p.conns[name] = c
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
		c.Close()
		return nil
	case s.Send != nil:
		return p.send(c, s.Send)
	case s.SendText != nil:
		return c.Write([]byte(*s.SendText))
	case s.SendBinary != nil:
		c.talk.Sent([]byte(*s.SendBinary))
		return c.ws.WriteBinary([]byte(*s.SendBinary))
	case s.ExpectClosed != nil:
		m, err := c.receive()
		switch {
		case errors.Is(err, rawclient.ErrEnded):
			return nil
		case err != nil:
			return fmt.Errorf("not closed: %w", err)
		}
		return fmt.Errorf("not closed but got %v", m)
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
	return c.Write(message)
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
	for late := time.Now().Add(rig.Patience); err == nil && s.Again && !match(want, got) && time.Now().Before(late); {
		time.Sleep(10 * time.Millisecond) // between questions
		if err = c.Write(c.sent); err == nil {
			got, err = p.next(c, want)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; expected %s", err, s.Expect)
	}
	if s.Maybe && !match(want, got) {
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
	if !match(want, got) {
		if split(want, got) {
			return errSplit
		}
		text, _ := json.Marshal(got) // decoded from JSON: encodes again
		return fmt.Errorf("expected %s\n     got %s", s.Expect, text)
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
		data, _ := base64.StdEncoding.DecodeString(text)
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
// requests of the agent.
type conn struct {
	*rawclient.Client
	ws    *rawclient.WebSocket
	talk  contracttest.Conversation
	sent  json.RawMessage  // last
	queue []map[string]any // received, of the kind that nobody asked for yet
}

func dial(ctx context.Context, url string) (*conn, error) {
	ws, err := rawclient.Dial(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("dialing: %w", err)
	}
	return &conn{Client: rawclient.New(ws), ws: ws}, nil
}

// Write sends a message.
func (c *conn) Write(message []byte) error {
	c.talk.Sent(message)
	return c.Client.Write(message)
}

// receive returns the next message of any kind that is not queued. It is one that the contract has.
func (c *conn) receive() (map[string]any, error) {
	text, err := c.Receive()
	if err != nil {
		return nil, err
	}
	if err := c.talk.Received([]byte(text)); err != nil {
		return nil, fmt.Errorf("the contract: %w: %.1000s", err, text)
	}
	v, err := decode([]byte(text))
	object, ok := v.(map[string]any)
	if err != nil || !ok {
		object = map[string]any{"not an object": text}
	}
	return object, nil
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
