package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

const (
	// patience is how long a question waits for an answer. Then the answer is no.
	patience = 5 * time.Minute
	// maxQuestions bounds the questions that are open at once, and maxRemembered the answers for the session.
	maxQuestions, maxRemembered = 64, 1024
)

// The answers to a question.
const (
	once    = "once"
	session = "session" // and the same question again, while this program runs
	deny    = "deny"
)

// verdict is an answer, with a reason if it is no.
type verdict struct{ word, why string }

func (v verdict) yes() bool { return v.word == once || v.word == session }

// question is a question about a process that waits for an answer.
type question struct {
	id      string
	process string
	text    string
	key     string        // questions with the same key are the same; "": no other is
	answer  chan verdict  // has room for one
	over    chan struct{} // closed when no answer is needed any more
	asking  bool          // the user is being asked; guarded by the desk
}

// desk has the questions of the agent. A call that is about their process asks the user.
type desk struct {
	ask  bool
	note func(process, line string)

	mu         sync.Mutex // guards what follows
	open       map[string]*question
	remembered map[string]bool
	changed    chan struct{}

	closed chan struct{}
	asking sync.WaitGroup
}

func newDesk(ask bool, note func(process, line string)) *desk {
	return &desk{ask: ask, note: note, open: map[string]*question{}, remembered: map[string]bool{}, changed: make(chan struct{}), closed: make(chan struct{})}
}

// close answers all questions with no. It waits for the clients that are told so, until ctx ends.
func (d *desk) close(ctx context.Context) {
	close(d.closed)
	told := make(chan struct{})
	go func() {
		d.asking.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-ctx.Done(): // a client does not read, and this program ends
	}
}

// command answers a question about a command.
func (d *desk) command(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer {
	key := "" // of a cut command no answer is remembered
	if !q.Truncated {
		key = strings.Join(append([]string{"exec", q.Cwd, q.Exe}, q.Argv...), "\x00")
	}
	v := d.decide(ctx, q.ProcessID, console.Question(&q), key)
	switch {
	case v.word == session:
		return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalAcceptForProcess}
	case v.yes():
		return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalAccept}
	}
	return protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}
}

// host answers a question about a host.
func (d *desk) host(ctx context.Context, process string, r protocol.PolicyRequest) protocol.PolicyChoice {
	where := net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
	what := "connect to " + where
	if r.Method != "" {
		what = fmt.Sprintf("send %s %s to %s", r.Method, r.Path, where)
	}
	key := "host\x00" + what
	if strings.HasSuffix(r.Path, "...") {
		key = "" // others begin with the same text as a path that was cut
	}
	v := d.decide(ctx, process, []string{"The command wants to " + strconv.QuoteToGraphic(what)}, key)
	if v.yes() {
		return protocol.PolicyChoice{Type: protocol.PolicyAllow}
	}
	return protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(short(v.why, maxProgress))}
}

// decide waits for the answer to a question about a process.
func (d *desk) decide(ctx context.Context, process string, lines []string, key string) (v verdict) {
	for i, line := range lines {
		lines[i] = program.Plain(line) // some words are those of rules or of the agent
	}
	text := strings.Join(lines, "\n")
	d.mu.Lock()
	known := key != "" && d.remembered[key]
	q := &question{id: rand.Text(), process: process, text: text, key: key, answer: make(chan verdict, 1), over: make(chan struct{})}
	switch {
	case known:
		v = verdict{word: session}
	case !d.ask:
		v = verdict{deny, "agent mcp asks nobody (--questions refuse)"}
	case len(d.open) >= maxQuestions:
		v = verdict{deny, fmt.Sprintf("%d questions are open already", maxQuestions)}
	default:
		d.open[q.id] = q
		d.changeLocked()
	}
	d.mu.Unlock()
	defer close(q.over)
	if v == (verdict{}) {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case v = <-q.answer:
		case <-timer.C:
			v = verdict{deny, fmt.Sprintf("nobody has answered for %v", patience)}
		case <-ctx.Done():
			v = verdict{deny, "the agent needs no answer any more"}
		case <-d.closed:
			v = verdict{deny, errClosed.Error()}
		}
	}
	d.mu.Lock()
	delete(d.open, q.id)
	d.changeLocked()
	d.mu.Unlock()
	if !v.yes() {
		d.note(process, "refused: "+short(strings.Join(strings.Fields(text), " "), maxNote)+": "+v.why)
	}
	return v
}

func (d *desk) changeLocked() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// about returns an open question about a process, nil if there is none, and whether the user is being asked already.
// The channel is closed when questions have changed.
func (d *desk) about(process string) (q *question, asking bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.open {
		if other.process == process && (q == nil || asking) {
			q, asking = other, d.askingLocked(other)
		}
	}
	return q, asking, d.changed
}

// askingLocked reports whether the user is being asked a question, or the same one for another process, as by make -j.
func (d *desk) askingLocked(q *question) bool {
	for _, other := range d.open {
		if other.asking && (other == q || q.key != "" && other.key == q.key) {
			return true
		}
	}
	return false
}

// begin reports whether the caller is the one who asks the user.
func (d *desk) begin(q *question) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askingLocked(q) {
		return false
	}
	q.asking = true
	return true
}

// settle gives a question its answer; only the first one counts. An answer for the session is that of all questions
// that are the same.
func (d *desk) settle(q *question, v verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[q.id] != q {
		return
	}
	all := v.word == session && q.key != ""
	if all && len(d.remembered) < maxRemembered {
		d.remembered[q.key] = true
	}
	for _, other := range d.open {
		if other == q || all && other.key == q.key {
			other.answer <- v
			delete(d.open, other.id)
		}
	}
	d.changeLocked()
}

// answered takes the answers that a client has sent with a call, to questions of an earlier answer.
func (d *desk) answered(responses mcp.InputResponseMap) {
	for id, response := range responses {
		d.mu.Lock()
		q := d.open[id]
		d.mu.Unlock()
		if result, ok := response.(*mcp.ElicitResult); ok && q != nil {
			d.settle(q, verdictOf(result))
		}
	}
}

// verdictOf reads the answer of a client. Everything but a clear yes is a no.
func verdictOf(r *mcp.ElicitResult) verdict {
	word, _ := r.Content["decision"].(string)
	switch {
	case r.Action == "accept" && (word == once || word == session):
		return verdict{word: word}
	case r.Action == "accept":
		return verdict{deny, "the user has refused"}
	case r.Action == "decline":
		return verdict{deny, "the user has declined to answer"}
	}
	return verdict{deny, "the user has cancelled the question"}
}

// form is a question as a client shows it.
func (q *question) form() *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: q.text, RequestedSchema: map[string]any{
		"type": "object",
		"properties": map[string]any{"decision": map[string]any{
			"type": "string", "title": "Allow this?", "enum": []string{once, session, deny}, "default": deny,
			"description": "once; for this session: also when the same is asked again; or deny",
		}},
		"required": []string{"decision"},
	}}
}

// The ways to ask the user of a client.
type way int

const (
	noWay     way = iota
	byRequest     // elicitation/create, while the call waits
	byAnswer      // an answer that asks, after which the client calls again (2026-07-28)
)

// wayOf returns how the user of a session can be asked.
func wayOf(s *mcp.ServerSession) way {
	params := s.InitializeParams()
	if params == nil || params.Capabilities == nil || params.Capabilities.Elicitation == nil {
		return noWay
	}
	if e := params.Capabilities.Elicitation; e.Form == nil && e.URL != nil {
		return noWay
	}
	if params.ProtocolVersion >= "2026-07-28" {
		return byAnswer
	}
	return byRequest
}

// askNow asks the user by a request, which outlives the call, because people are slow.
func (d *desk) askNow(ctx context.Context, s *mcp.ServerSession, q *question) {
	if !d.begin(q) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	d.asking.Go(func() {
		select {
		case <-q.over:
		case <-ctx.Done():
		}
		cancel() // the client can take the question away
	})
	d.asking.Go(func() {
		defer cancel()
		result, err := s.Elicit(ctx, q.form())
		if err != nil {
			d.settle(q, verdict{deny, "the client could not ask: " + short(err.Error(), maxNote)})
			return
		}
		d.settle(q, verdictOf(result))
	})
}
