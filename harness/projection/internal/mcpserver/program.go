package mcpserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// leave is how long a program has to end by itself once its standard input has ended. Tests
// shorten it.
var leave = 2 * time.Second

const (
	// startAttempts bounds how often a program is started if the answer is lost with the
	// connection.
	startAttempts = 3
	// ending bounds the time for the whole end of a program.
	ending = 30 * time.Second
	// farewell is how long a failed write waits for the program's exit, because the exit is a
	// better error.
	farewell = 10 * time.Second
	// stdinChunk is how much of a message goes into one request, in bytes.
	stdinChunk = 256 << 10

	// maxAsked is how many requests of the server may wait for an answer.
	maxAsked = 64
	// maxStderr bounds the part of standard error that an error repeats, in bytes.
	maxStderr = 1 << 10
)

// maxUnasked is how many bytes a program may print at once that are no answer. unaskedRate of them
// are forgotten in each second. Tests set lower bounds, which even a slow machine reaches in time.
var maxUnasked, unaskedRate = 64 << 20, 1 << 20

var errAsked = fmt.Errorf("more than %d requests of the server wait for an answer", maxAsked)

const (
	// notificationListChanged is the only notification of a server that is used here.
	notificationListChanged = "notifications/tools/list_changed"
	// notificationInitialized is our notification, at the end of the handshake.
	notificationInitialized = "notifications/initialized"
)

// program is a server on the standard input and output of a process of the executor: one
// JSON message per line. It is the transport and the connection of the SDK.
type program struct {
	client *client.Client
	spec   *Spec

	life    context.Context // ends with the connection
	cancel  context.CancelCauseFunc
	process *client.Process // nil if it could not be started
	writing chan struct{}   // has a value while a message is written, so that lines stay whole

	// Only Read uses these.
	lines   lines
	unasked allowance

	mu    sync.Mutex
	tail  []byte                  // the end of standard error
	asked int                     // requests of the server that wait for an answer
	calls map[jsonrpc.ID]struct{} // requests of ours that have no answer yet
}

func newProgram(c *client.Client, spec *Spec) *program {
	p := &program{client: c, spec: spec, writing: make(chan struct{}, 1), calls: map[jsonrpc.ID]struct{}{}}
	p.life, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Connect starts the program (capabilities.md 6.2).
func (p *program) Connect(ctx context.Context) (mcp.Connection, error) {
	for attempt := 1; ; attempt++ {
		var err error
		p.process, err = p.client.Start(ctx, p.params())
		if err == nil {
			return p, nil
		}
		if _, lost := errors.AsType[*client.DisconnectedError](err); !lost || p.client.Err() != nil || attempt == startAttempts {
			return nil, fmt.Errorf("starting %.256q: %w", p.spec.Argv[:min(1, len(p.spec.Argv))], err)
		}
	}
}

func (p *program) params() protocol.StartParams {
	// The number differs from the number of every other program of the session, including programs
	// that another harness has started, or this harness before it resumed the session.
	var number [6]byte
	_, _ = rand.Read(number[:]) // it never fails
	n := binary.BigEndian.Uint64(append([]byte{0, 0}, number[:]...))
	env := p.spec.Env
	if env == nil {
		env = map[string]string{}
	}
	return protocol.StartParams{
		ProcessID: "mcp-stdio-" + strconv.FormatUint(n, 10),
		Argv:      p.spec.Argv,
		Cwd:       p.spec.Dir,
		EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore, Set: env},
		Env:       env,
		PipeStdin: true,
	}
}

// Read returns the next message that the SDK needs. One goroutine of the SDK calls it, and calls it
// again at once. So the events of the process are always taken, and block nothing.
func (p *program) Read(context.Context) (jsonrpc.Message, error) {
	for {
		line, ok := p.lines.next()
		msg, err := jsonrpc.Message(nil), error(nil)
		if ok {
			msg, err = p.take(line)
		} else {
			err = p.more()
		}
		if err != nil {
			p.cut(err) // otherwise writing an answer that the program does not read would never end
			return nil, err
		}
		if msg != nil {
			return msg, nil
		}
	}
}

// take decodes a line. It returns nil for a message that the SDK does not need.
func (p *program) take(line []byte) (jsonrpc.Message, error) {
	if costOf(line) > maxCost {
		return nil, errCost
	}
	msg, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return nil, p.unaskedFor(len(line)) // programs print greetings
	}
	request, ok := msg.(*jsonrpc.Request)
	switch {
	case !ok:
		if response, ok := msg.(*jsonrpc.Response); !ok || !p.answered(response.ID) {
			return nil, p.unaskedFor(len(line))
		}
		return msg, nil
	case !request.IsCall() && request.Method != notificationListChanged:
		return nil, p.unaskedFor(len(line))
	case request.IsCall():
		p.mu.Lock()
		p.asked++
		asked := p.asked
		p.mu.Unlock()
		if asked > maxAsked {
			return nil, errAsked
		}
	}
	return msg, p.unaskedFor(len(line))
}

// answered notes an answer. It reports whether a call waits for the answer.
func (p *program) answered(id jsonrpc.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waiting := p.calls[id]
	delete(p.calls, id)
	return waiting
}

// unaskedFor counts printed bytes that are no answer.
func (p *program) unaskedFor(n int) error {
	if !p.unasked.spend(n, time.Now()) {
		return fmt.Errorf("the server prints more than %d bytes that nobody has asked for", maxUnasked)
	}
	return nil
}

// more waits for the next piece of standard output.
func (p *program) more() error {
	for e, err := range p.process.Events(p.life) {
		switch {
		case err != nil:
			return err
		case e.Kind != client.Output:
			continue
		case e.Stream == protocol.StreamStderr:
			p.mu.Lock()
			p.tail = append(p.tail, e.Data...)
			p.tail = p.tail[max(0, len(p.tail)-maxStderr):]
			p.mu.Unlock()
			if err := p.unaskedFor(len(e.Data)); err != nil {
				return err
			}
			continue
		}
		return p.lines.add(e.Data)
	}
	code, err := p.process.Wait(p.life)
	if err != nil {
		return err
	}
	return &ExitError{Code: code, Stderr: p.stderr()}
}

func (p *program) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ToValidUTF8(string(bytes.TrimSpace(p.tail)), "\uFFFD")
}

// ExitError says that the program of a server has ended.
type ExitError struct {
	Code   int    // 128+n after signal n
	Stderr string // the end of its standard error
}

func (e *ExitError) Error() string {
	text := fmt.Sprintf("the server has exited with code %d", e.Code)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// Write sends a message as one line.
func (p *program) Write(ctx context.Context, msg jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	if _, answer := msg.(*jsonrpc.Response); answer {
		defer func() {
			p.mu.Lock()
			p.asked--
			p.mu.Unlock()
		}()
	}
	if request, ok := msg.(*jsonrpc.Request); ok && request.IsCall() {
		p.mu.Lock()
		p.calls[request.ID] = struct{}{}
		p.mu.Unlock()
	}
	ctx, cancel := during(ctx, p.life)
	defer cancel()
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	text = append(text, '\n')
	for begun := false; len(text) > 0; begun = true {
		chunk := text[:min(len(text), stdinChunk)]
		if err := p.process.Write(ctx, chunk); err != nil {
			if begun {
				p.cut(fmt.Errorf("a message was cut short: %w", err)) // no line after it could be read
			}
			return p.why(ctx, err)
		}
		text = text[len(chunk):]
	}
	return nil
}

// why waits for the error of Read after a failed write, because the program has usually just
// exited.
func (p *program) why(ctx context.Context, err error) error {
	wait := time.NewTimer(farewell)
	defer wait.Stop()
	select {
	case <-ctx.Done(): // it ends with p.life
	case <-wait.C:
	}
	return cmp.Or(context.Cause(p.life), err)
}

// cut ends the connection: reading and writing fail from now on.
func (p *program) cut(err error) { p.cancel(err) }

// Close only cuts the connection, because the SDK calls it with a mutex held. shut ends the
// program.
func (p *program) Close() error {
	p.cut(ErrClosed)
	return nil
}

// SessionID returns "", because only other transports have session ids.
func (p *program) SessionID() string { return "" }

// shut ends the program. It closes the program's standard input, as the protocol says, and then
// kills the program with its process group. If the executor cannot be reached, the program ends
// with the session there.
func (p *program) shut() {
	p.cut(ErrClosed)
	if p.process == nil {
		return
	}
	defer p.process.Close()
	p.process.Discard()
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	defer cancel()
	p.ask(ctx)
	for p.client.Err() == nil && ctx.Err() == nil {
		err := p.process.Terminate(ctx)
		if _, lost := errors.AsType[*client.DisconnectedError](err); !lost {
			break
		}
	}
	_, _ = p.process.Wait(ctx) // how it has ended does not matter
}

// ask ends the program's standard input and gives it time to leave.
func (p *program) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leave)
	defer cancel()
	if p.process.CloseStdin(ctx) == nil {
		_, _ = p.process.Wait(ctx) // otherwise it is killed
	}
}

// lines cuts output into lines. The zero value is empty.
type lines struct {
	rest    []byte // not returned yet
	scanned int    // this many bytes of rest have no end of a line
}

// add appends output, unless a line would be too long. The caller has taken all whole lines before.
func (l *lines) add(data []byte) error {
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		end = len(data)
	}
	if len(l.rest)+end > maxMessage {
		return errLine
	}
	l.rest = append(l.rest, data...)
	return nil
}

var errLine = fmt.Errorf("a message of the server is longer than %d bytes", maxMessage)

// next returns the next whole line.
func (l *lines) next() ([]byte, bool) {
	end := bytes.IndexByte(l.rest[l.scanned:], '\n')
	if end < 0 {
		l.scanned = len(l.rest)
		return nil, false
	}
	line := l.rest[:l.scanned+end]
	if l.rest, l.scanned = l.rest[l.scanned+end+1:], 0; len(l.rest) == 0 {
		l.rest = nil // its array may be large
	}
	return line, true
}

// allowance is how much may be spent: at most maxUnasked at once, and unaskedRate in a second.
// The zero value is full.
type allowance struct {
	spent float64
	at    time.Time
}

func (a *allowance) spend(n int, now time.Time) bool {
	if !a.at.IsZero() {
		a.spent = max(0, a.spent-now.Sub(a.at).Seconds()*float64(unaskedRate))
	}
	a.at = now
	a.spent += float64(n)
	return a.spent <= float64(maxUnasked)
}
