package agent

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// asked puts a question to the client of a session, and returns what will become of it.
func asked(ctx context.Context, s *Session, answer *protocol.PolicyAnswer) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.ask(ctx, "test/question", object{}, answer) }()
	return done
}

// asker returns a client with its session, which has been announced.
func (r *harness) asker(t *testing.T, more object) (*raw, *Session, func()) {
	t.Helper()
	c, id, lose := r.opens(t, more)
	synctest.Wait()
	return c, r.session(id), lose
}

// TestAsk: questions are numbered from 1 on each connection, and answered in any order; what
// answers no question is ignored.
func TestAsk(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		more := object{}
		for range 2 {
			c, s, drop := r.asker(t, more)
			more["resumeSessionId"] = s.id
			var answers [2]protocol.PolicyAnswer
			first := asked(t.Context(), s, &answers[0])
			c.wantQuestion(1)
			second := asked(t.Context(), s, &answers[1])
			c.wantQuestion(2)
			c.send(`{"id":7,"result":{}}`)
			c.send(`{"id":"x","error":{"code":1,"message":"m"}}`)
			c.send(`{"id":2,"result":{"decision":{"type":"deny","reason":"two"}}}`)
			rig.Must(t, <-second)
			rig.Is(t, *answers[1].Decision.Reason, "two", "the answer to the second question")
			c.send(`{"id":2,"result":{"decision":{"type":"allow"}}}`) // once more
			c.send(`{"id":1,"error":{"code":-32601,"message":"what?"}}`)
			rig.Is(t, <-first != nil, true, "an error is no answer")
			ctx, cancel := context.WithCancel(t.Context())
			late := asked(ctx, s, &answers[0])
			c.wantQuestion(3)
			cancel()
			rig.Is(t, <-late, context.Canceled, "a question that was given up")
			c.send(`{"id":3,"result":{"decision":{"type":"allow"}}}`)
			malformed := asked(t.Context(), s, &answers[0])
			c.wantQuestion(4) // so the connection lives
			c.send(`{"id":4,"result":{"decision":null}}`)
			rig.Is(t, <-malformed != nil, true, "null is no decision")
			drop()
		}
	})
}

// TestAskWithoutClient: a question fails as soon as nobody is attached any more, and at once where
// nobody is.
func TestAskWithoutClient(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		c, s, drop := r.asker(t, nil)
		var answer protocol.PolicyAnswer
		waiting := asked(t.Context(), s, &answer)
		c.wantQuestion(1)
		drop()
		rig.Is(t, <-waiting, approval.ErrDetached, "a question whose client goes")
		rig.Is(t, <-asked(t.Context(), s, &answer), approval.ErrDetached, "while detached")
		rig.Is(t, len(s.asked), 0, "questions that wait for nobody")
	})
}

// TestAskTaken: who has lost the session to another client decides nothing any more.
func TestAskTaken(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		named := object{"sessionName": "n", "take": true}
		first, s, _ := r.asker(t, named)
		var answer protocol.PolicyAnswer
		waiting := asked(t.Context(), s, &answer)
		first.wantQuestion(1)
		second, _, _ := r.asker(t, named)
		rig.Is(t, <-waiting, approval.ErrDetached, "a question to a client that has lost the session")
		next := asked(t.Context(), s, &answer)
		second.wantQuestion(1)
		second.send(`{"id":1,"result":{"decision":{"type":"allow"}}}`)
		rig.Must(t, <-next)
		rig.Is(t, answer.Decision.Type, protocol.PolicyAllow, "the client that has the session now says")
	})
}

// TestManyQuestions: one more than may wait is not asked.
func TestManyQuestions(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func(t *testing.T, r *harness) {
		c, s, _ := r.asker(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var answer protocol.PolicyAnswer
		var all []<-chan error
		for range maxAsked {
			all = append(all, asked(ctx, s, new(protocol.PolicyAnswer)))
		}
		for range maxAsked {
			rig.Is(t, c.next().Method, "test/question", "the client hears")
		}
		rig.Is(t, <-asked(t.Context(), s, &answer), errAsked, "one more question")
		cancel()
		for i, done := range all {
			rig.Is(t, <-done, context.Canceled, "question %d", i)
		}
		next := asked(t.Context(), s, &answer)
		c.wantQuestion(maxAsked + 1)
		c.send(`{"id":%d,"result":{"decision":{"type":"allow"}}}`, maxAsked+1)
		rig.Check(t, <-next)
	})
}

// resume returns a client that has resumed a session, and what loses its connection.
func (r *harness) resume(t *testing.T, session string) (*raw, func()) {
	t.Helper()
	c, _, lose := r.opens(t, object{"resumeSessionId": session})
	r.session(session).announced(t)
	return c, lose
}

// announced waits until the session knows the client that has the answer to initialize.
func (s *Session) announced(t *testing.T) {
	rig.Until(t, "the client is announced", func() bool { return s.peer.Load() != nil })
}

func (c *raw) wantQuestion(id int) {
	c.t.Helper()
	if m := c.next(); m.Method != "test/question" || fmt.Sprint(m.ID) != fmt.Sprint(id) {
		c.t.Fatalf("%+v, want question %d", m, id)
	}
}
