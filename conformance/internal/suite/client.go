package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// CheckClient plays all parts for a client. The error is about the suite, not about the client.
func (s *Suite) CheckClient(ctx context.Context, cases []*ClientCase) (*Report, error) {
	all := make([]work, 0, len(cases))
	for _, c := range cases {
		all = append(all, work{
			result:  Result{Name: c.Name, Area: c.Area, Section: c.Section},
			seconds: c.Seconds,
			run:     func(ctx context.Context, dir string) error { return s.playFor(ctx, c, dir) },
		})
	}
	return s.run(ctx, s.Client, all)
}

// playFor plays one part, and says what the client has done wrong.
func (s *Suite) playFor(ctx context.Context, c *ClientCase, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := listenAs(ctx, c, s.Token, cancel)
	if err != nil {
		return err
	}
	defer p.close()
	cmd := shell(strings.ReplaceAll(s.Client, "{url}", p.url), c.Argv...)
	stdout, stderr := &limited{}, &limited{}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, strings.NewReader(string(c.Stdin)), stdout, stderr, grace
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := context.AfterFunc(ctx, func() { killGroup(cmd) })
	waitErr := cmd.Wait()
	killed := !kill()
	killGroup(cmd) // what it has left
	faults := p.close()
	if killed && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("the client has not ended: %w", context.Cause(ctx)))
	}
	status := cmd.ProcessState.ExitCode()
	out, errOut, code := c.printed()
	var wrong []error
	if status != code {
		wrong = append(wrong, errors.Join(fmt.Errorf("its status is %d, not %d", status, code), waitErr))
	}
	if got := stdout.String(); got != out {
		wrong = append(wrong, fmt.Errorf("its standard output %s", differs(out, got)))
	}
	if got := stderr.String(); !strings.Contains(got, errOut) {
		wrong = append(wrong, fmt.Errorf("its standard error is %.300q, without %.300q", got, errOut))
	}
	if got := p.input(); got != string(c.Stdin) && c.reads() {
		wrong = append(wrong, fmt.Errorf("the input of the process %s", differs(string(c.Stdin), got)))
	}
	failed := status != 0
	switch {
	case killed, c.Fails && failed, c.Survives && (failed || len(wrong) == 0):
	case c.Fails:
		faults = append(faults, errors.New("its status is 0, although the command could not be carried out"))
	default:
		faults = append(faults, wrong...)
		if len(wrong) != 0 {
			faults = append(faults, fmt.Errorf("its standard error: %.500q", stderr.String()))
		}
	}
	return errors.Join(faults...)
}

// reads reports whether the process takes all of its input.
func (c *ClientCase) reads() bool {
	for _, a := range c.Play {
		if a.EOF || a.Stdin == len(c.Stdin) {
			return true
		}
	}
	return false
}

// differs says where a text differs from the one that is wanted.
func differs(want, got string) string {
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	return fmt.Sprintf("has %d bytes, not %d, and at byte %d %.60q, not %.60q", len(got), len(want), at, got[at:], want[at:])
}

// limited keeps the beginning of what is written to it.
type limited struct{ strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	l.Builder.Write(p[:min(len(p), 2*maxLong-l.Len())])
	return len(p), nil
}
