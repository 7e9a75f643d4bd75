package approval

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/test/rig"
)

// TestJudgeGone: when the judge has ended, as with an init that was killed, its questions end: nobody
// waits for the answers, and the output of the command can wait for the questions.
func TestJudgeGone(t *testing.T) {
	t.Parallel()
	asked, ended := make(chan struct{}), make(chan error, 1)
	desk := &Desk{
		Ask: func(ctx context.Context, _ string, _, _ any) error {
			close(asked)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		},
		Tell: func(string, any) {},
	}
	desk.Attach(true)
	p, j, theirs, end := open(t, desk, "p")
	defer end()
	decided := make(chan error, 1)
	go func() {
		decided <- j.Decide(&judge.Exec{Real: []string{"/bin/a"}, Argv: []string{"a"}, Thread: os.Getpid()})
	}()
	<-asked
	rig.Must(t, unix.Shutdown(theirs, unix.SHUT_RDWR)) // as the end of its process does
	rig.Is(t, <-ended, errExited, "the question has ended")
	p.Exited()
	rig.Is(t, <-decided != nil, true, "the program was not allowed")
}
