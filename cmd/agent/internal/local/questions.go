package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/execagent/execagent/cmd/agent/internal/console"
)

// message is what a job and its console tell each other about a question. The job asks, and tells
// whether a line was an answer, or that it needs no answer any more. The console passes on a line,
// or says why there is none.
type message struct {
	Question int      `json:"question"`
	Lines    []string `json:"lines,omitempty"`
	Over     bool     `json:"over,omitempty"`

	Line   *string `json:"line,omitempty"`
	Taken  *bool   `json:"taken,omitempty"`
	Failed string  `json:"failed,omitempty"`
}

// questioner asks the questions of the job at its console. nil asks nobody.
type questioner struct {
	file    *os.File
	answers chan message // closed when the console is gone
	over    chan struct{}
	close   sync.Once
	turn    chan struct{} // has a value while no question is asked
	last    int           // guarded by turn
}

func newQuestioner(file *os.File) *questioner {
	if file == nil {
		return nil
	}
	q := &questioner{file: file, answers: make(chan message), over: make(chan struct{}), turn: make(chan struct{}, 1)}
	q.turn <- struct{}{}
	go func() { // its read cannot be interrupted, so nobody waits for it: it ends with the console, or this program
		defer close(q.answers)
		for from := json.NewDecoder(file); ; {
			var m message
			if from.Decode(&m) != nil {
				return
			}
			select {
			case q.answers <- m:
			case <-q.over:
				return
			}
		}
	}()
	return q
}

// Ask is a [console.Ask].
func (q *questioner) Ask(ctx context.Context, lines []string, take func(line string) bool) error {
	if q == nil {
		return console.ErrNobody
	}
	select {
	case <-q.turn:
		defer func() { q.turn <- struct{}{} }()
	case <-q.over:
		return console.ErrNobody
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	q.last++
	to := json.NewEncoder(q.file)
	if err := to.Encode(message{Question: q.last, Lines: lines}); err != nil {
		return console.ErrNobody
	}
	for {
		select {
		case m, there := <-q.answers:
			switch {
			case !there:
				return console.ErrNobody
			case m.Question != q.last: // it came too late
			case m.Line == nil:
				return errors.New(m.Failed)
			default:
				taken := take(*m.Line)
				if err := to.Encode(message{Question: q.last, Taken: &taken}); err != nil || taken {
					return nil
				}
			}
		case <-q.over:
			return console.ErrNobody
		case <-ctx.Done():
			_ = to.Encode(message{Question: q.last, Over: true}) // a console that is gone asks nothing
			return context.Cause(ctx)
		}
	}
}

// Close ends all questions. It may be called more than once.
func (q *questioner) Close() {
	if q != nil {
		q.close.Do(func() {
			close(q.over)
			_ = q.file.Close() // nothing is left to be written
		})
	}
}

// serveQuestions asks the questions of a job at the console, until the job has closed its end.
func serveQuestions(ctx context.Context, job io.ReadWriter, ask console.Ask) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	var mu sync.Mutex
	encoder := json.NewEncoder(job)
	say := func(m message) {
		mu.Lock()
		defer mu.Unlock()
		_ = encoder.Encode(m) // a job that is gone needs no answer
	}
	var taken chan bool
	withdraw := func() {}
	for from := json.NewDecoder(job); ; {
		var m message
		if from.Decode(&m) != nil {
			return
		}
		switch {
		case m.Lines != nil:
			withdraw()
			its, end := context.WithCancel(ctx)
			replies, id, lines := make(chan bool, 1), m.Question, m.Lines
			taken, withdraw = replies, end
			asking.Go(func() {
				defer end()
				err := ask(its, lines, func(line string) bool {
					say(message{Question: id, Line: &line})
					select {
					case ok := <-replies:
						return ok
					case <-its.Done():
						return false
					}
				})
				if err != nil {
					say(message{Question: id, Failed: err.Error()})
				}
			})
		case m.Taken != nil && taken != nil:
			select {
			case taken <- *m.Taken:
			default:
			}
		case m.Over:
			withdraw()
		}
	}
}
