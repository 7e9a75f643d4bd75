package audit

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/loglines"
	"github.com/execagent/execagent/test/rig"
)

// TestLines: the lines of a client that works and of one that only looks, at both levels.
func TestLines(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	told := func(level slog.Level) string {
		log.Reset()
		handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level})
		for _, works := range []bool{true, false} {
			s := New(slog.New(handler)).Session("abcd", "sub:alice")
			c := s.Attach("cli", "sub:alice", "192.0.2.1:7", false)
			if works {
				c.Use()
				c.Use()
				p := s.Started("/usr/bin/"+strings.Repeat("x", 100), 7, true, []string{"landlock:7"})
				p.Exited(3)
				p.Killed() // what is left of it
				s.Started("make", 8, false, nil).Killed()
				s.Capturing("/bin/bash", 9, nil).Captured()
			}
			c.Detach(2)
			s.Ended("expired")
		}
		return regexp.MustCompile(`time=\S+ |seconds=\S+ ?`).ReplaceAllString(log.String(), "")
	}
	const works = `level=INFO msg="session attached" session=abcd client=cli principal=sub:alice remote=192.0.2.1:7 resumed=false
level=INFO msg="session detached" session=abcd client=cli principal=sub:alice remote=192.0.2.1:7 running=2
level=INFO msg="session ended" session=abcd principal=sub:alice reason=expired
`
	rig.Is(t, told(slog.LevelInfo), works, "at info:\n")
	x := strings.Repeat("x", maxProgram) + "..."
	attached, rest, _ := strings.Cut(works, "\n")
	want := attached + `
level=DEBUG msg="process started" session=abcd program=` + x + ` pid=7 tty=true sandbox=[landlock:7]
level=DEBUG msg="process ended" session=abcd program=` + x + ` pid=7 exit_code=3 
level=DEBUG msg="process started" session=abcd program=make pid=8 tty=false sandbox=[]
level=DEBUG msg="process ended" session=abcd program=make pid=8 killed=true 
level=DEBUG msg="snapshot started" session=abcd program=bash pid=9 sandbox=[]
level=DEBUG msg="snapshot ended" session=abcd program=bash pid=9 
` + rest + `level=DEBUG msg="session detached" session=abcd client=cli principal=sub:alice remote=192.0.2.1:7 running=2
level=DEBUG msg="session ended" session=abcd principal=sub:alice reason=expired
`
	rig.Is(t, told(slog.LevelDebug), want, "at debug:\n")
}

// TestDecided: a flood of refusals fills no log and hides no acceptance, and the log says how many
// lines it lacks.
func TestDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log rig.Transcript
		read := 0
		a := New(slog.New(slog.NewTextHandler(&log, nil)))
		s := a.Session("abcd", "")
		told := func() (all []string) {
			synctest.Wait()
			text := log.String()
			for line := range strings.Lines(text[read:]) {
				all = append(all, line[strings.Index(line, "msg="):])
			}
			read = len(text)
			return all
		}
		const refused = "msg=\"command decided\" session=abcd pid=7 outcome=refused\n"
		for range 1000 {
			s.Decided("refused", "pid", 7)
		}
		s.Decided("accepted", "pid", 8)
		want := append(slices.Repeat([]string{refused}, loglines.Max), "msg=\"command decided\" session=abcd pid=8 outcome=accepted\n")
		rig.Same(t, "told", want, told())
		time.Sleep(loglines.Interval)
		more := "msg=\"more commands decided\" session=abcd outcome=refused count=980 interval=10s\n"
		rig.Same(t, "told after the interval", []string{more}, told())
		for range loglines.Max + 1 {
			s.Decided("refused", "pid", 7)
		}
		s.Ended("expired")
		want = append(slices.Repeat([]string{refused}, loglines.Max), strings.ReplaceAll(more, "980", "1"))
		rig.Same(t, "told at the end of a session without a client, which is for debug", want, told())
		time.Sleep(2 * loglines.Interval)
		rig.Is(t, len(told()), 0, "lines after the end")

		// Clients that come and go are bounded for each principal, whose name may be long.
		long := strings.Repeat("x", 6000)
		for range loglines.Max + 5 {
			c := a.Session("abcd", long).Attach("cli", long, "uid:0", false)
			c.Use()
			c.Detach(0)
		}
		a.Session("efgh", "b").Attach("cli", "b", "uid:0", false).Use()
		a.Close()
		counts := map[string]int{}
		for _, line := range told() {
			message, _, _ := strings.Cut(line, " session=")
			message, _, _ = strings.Cut(message, " interval=")
			counts[strings.ReplaceAll(message, long[:maxPrincipal]+"...", "x...")]++
		}
		rig.Same(t, "lines", map[string]int{
			`msg="session attached"`: loglines.Max + 1, `msg="session detached"`: loglines.Max,
			`msg="more session lines" principal=x... message="session attached" count=5`: 1,
			`msg="more session lines" principal=x... message="session detached" count=5`: 1,
		}, counts)
	})
}
