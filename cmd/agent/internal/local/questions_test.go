package local

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/test/rig"
)

// TestQuestions: a question of the job is asked at the console until it is answered, or needs no
// answer, or nobody is there.
func TestQuestions(t *testing.T) {
	t.Parallel()
	ends := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	types, asked, withdrawn, served := make(chan string, 4), make(chan string, 4), make(chan string, 4), make(chan struct{})
	go func() {
		defer close(served)
		serveQuestions(t.Context(), ours, func(ctx context.Context, lines []string, take func(string) bool) error {
			asked <- lines[0]
			for {
				select {
				case line := <-types:
					if line == "gone" {
						return errors.New("gone")
					}
					if take(line) {
						return nil
					}
				case <-ctx.Done():
					withdrawn <- lines[0]
					return ctx.Err()
				}
			}
		})
	}()
	q := newQuestioner(theirs)
	var lines []string
	take := func(line string) bool {
		lines = append(lines, line)
		return line == "yes"
	}
	types <- "what"
	types <- "yes"
	rig.Check(t, q.Ask(t.Context(), []string{"one", "yes? "}, take))
	rig.Is(t, <-asked, "one", "the first question")
	rig.Same(t, "lines", []string{"what", "yes"}, lines)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the command has ended")
	go func() {
		<-asked
		cancel(why)
	}()
	rig.Is(t, q.Ask(ctx, []string{"two"}, take), why, "a question that needs no answer")
	rig.Is(t, <-withdrawn, "two", "the question that is withdrawn")
	types <- "gone"
	rig.Says(t, q.Ask(t.Context(), []string{"three"}, take), "gone", "a console without a user")
	rig.Must(t, ours.Close())
	<-served
	rig.Is(t, q.Ask(t.Context(), []string{"four"}, take), console.ErrNobody, "without a console")
	q.Close()
	rig.Is(t, q.Ask(t.Context(), []string{"five"}, take), console.ErrNobody, "at the end")
	rig.Is(t, (*questioner)(nil).Ask(t.Context(), nil, take), console.ErrNobody, "where nobody can be asked")
}
