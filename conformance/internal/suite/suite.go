package suite

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/contracttest"
)

// A Suite says what is checked, and how.
type Suite struct {
	// URL is where an executor listens: ws, wss or unix. Token is shown to it.
	URL, Token string
	// Command starts an executor that speaks on its standard input and output. With a URL it serves only the cases
	// that need an executor of their own.
	Command string
	// Client is the command of a client. {url} in it is replaced, and a command line follows it.
	Client string
	// Case is a pattern of path.Match for the names of cases, Area an area; "": all.
	Case, Area string
	// Slow: cases of more than a second run too.
	Slow bool
	// Exact: members that only some executors send are not optional.
	Exact bool
	// Scale multiplies all time limits; 0 is 1.
	Scale float64
	// Parallel is how many cases run at once; 0 is 4.
	Parallel int
	// Expected are differences that are no failures; nil: none.
	Expected *Expected
	// Folder is where the cases make their files, "" the temporary one.
	Folder string
	// Log is the standard error of the programs that are checked; nil: nobody reads it.
	Log *os.File
}

const (
	// caseLimit is how long a case may take beyond its Seconds.
	caseLimit = 20 * time.Second
	// maxTimeouts is how many cases may run out of time before the others are given up.
	maxTimeouts = 20
)

// An Outcome is how a case has ended.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Skipped Outcome = "skip"
	// Differs is a failure that is expected.
	Differs Outcome = "expected"
)

// A Result is how one case has ended, and why.
type Result struct {
	Name, Area, Section string
	Outcome             Outcome
	Why                 string
	Took                time.Duration
}

// errSkip is in the chain of an error that says why a case cannot run here.
var errSkip = errors.New("skipped")

// errTime is why a case ends that has run out of time.
type errTime time.Duration

func (e errTime) Error() string {
	return fmt.Sprintf("the program has not done its part within %s", time.Duration(e))
}

// limit returns the time limit of a case that takes some seconds.
func (s *Suite) limit(seconds int) time.Duration {
	return time.Duration(cmp.Or(s.Scale, 1) * float64(caseLimit+time.Duration(seconds)*time.Second))
}

// work is a case of either kind, ready to run.
type work struct {
	result Result
	// cannot is why the case cannot run; nil: it can.
	cannot  error
	seconds int
	run     func(ctx context.Context, dir string) error
}

// run runs all cases that are wanted, each with a folder of its own, and reports them in their order.
func (s *Suite) run(ctx context.Context, about string, all []work) (*Report, error) {
	base, err := os.MkdirTemp(s.Folder, "conformance-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(base) }()
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(w work) bool {
		ok, err := path.Match(cmp.Or(s.Case, "*"), w.result.Name)
		return err != nil || !ok || s.Area != "" && s.Area != w.result.Area
	})
	if len(all) == 0 {
		return nil, errors.New("no case has this name and area")
	}
	var wg sync.WaitGroup
	var late atomic.Int32
	slots := make(chan struct{}, cmp.Or(s.Parallel, 4))
	for i := range all {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			w := &all[i]
			begin, err := time.Now(), w.cannot
			switch {
			case err != nil:
			case late.Load() >= maxTimeouts:
				err = fmt.Errorf("%w: %d cases have run out of time before", errSkip, maxTimeouts)
			case w.seconds > 1 && !s.Slow:
				err = fmt.Errorf("%w: it takes %d s, and slow cases were not asked for", errSkip, w.seconds)
			default:
				err = s.once(ctx, w, filepath.Join(base, fmt.Sprint(i)))
			}
			if _, ok := errors.AsType[errTime](err); ok && s.Expected.Of(w.result.Name) == "" {
				late.Add(1)
			}
			w.result.Took = time.Since(begin)
			s.judge(&w.result, err)
		})
	}
	wg.Wait()
	report := &Report{About: about}
	for _, w := range all {
		report.Results = append(report.Results, w.result)
	}
	return report, context.Cause(ctx)
}

// once runs a case within its time.
func (s *Suite) once(ctx context.Context, w *work, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	limit := s.limit(w.seconds)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTime(limit))
	defer cancel()
	return w.run(ctx, dir)
}

// judge fills in how a case has ended.
func (s *Suite) judge(r *Result, err error) {
	why := s.Expected.Of(r.Name)
	switch {
	case errors.Is(err, errSkip):
		r.Outcome, r.Why = Skipped, strings.TrimPrefix(err.Error(), errSkip.Error()+": ")
	case err == nil && why != "":
		r.Outcome, r.Why = Failed, "passes, but is expected to differ: take it out of the list, which says: "+why
	case err == nil:
		r.Outcome = Passed
	case why != "":
		r.Outcome, r.Why = Differs, why
	default:
		r.Outcome, r.Why = Failed, err.Error()
	}
}

// CheckExecutor holds all conversations with an executor. The error is about the suite, not about the executor.
func (s *Suite) CheckExecutor(ctx context.Context, cases []*Case) (*Report, error) {
	about := s.URL
	if about == "" {
		about = s.Command
	}
	flags, hello := s.capabilities(ctx)
	all := []work{{
		result: Result{Name: "hello", Area: "handshake", Section: "rpc.md 3.1"},
		run:    func(context.Context, string) error { return hello },
	}}
	for _, c := range cases {
		w := work{result: Result{Name: c.Name, Area: c.Area, Section: c.Section}, seconds: c.Seconds, cannot: s.cannot(c, flags)}
		if hello != nil && w.cannot == nil && c.Area != "handshake" && c.Area != "errors" {
			w.cannot = fmt.Errorf("%w: the executor has not answered initialize (case hello)", errSkip)
		}
		w.run = func(ctx context.Context, dir string) error { return s.converse(ctx, c, dir) }
		all = append(all, w)
	}
	return s.run(ctx, about, all)
}

// capabilities opens a session and returns what the executor announces.
func (s *Suite) capabilities(ctx context.Context) (flags map[string]bool, err error) {
	limit := s.limit(0)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTime(limit))
	defer cancel()
	p := &player{dial: s.dialer("", nil), conns: map[string]*conn{}}
	defer p.close()
	if err := p.connect(ctx, "a"); err != nil {
		return nil, err
	}
	c := p.conns["a"]
	if err := c.send([]byte(`{"id":1,"method":"initialize","params":{"clientName":"conformance-suite"}}`)); err != nil {
		return nil, err
	}
	got, err := c.find(func(m map[string]any) bool { return m["method"] == nil })
	if err != nil {
		return nil, err
	}
	var answer struct {
		Result struct {
			EnvironmentInfo struct {
				Capabilities map[string]any `json:"capabilities"`
			} `json:"environmentInfo"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text(got), &answer); err != nil || answer.Error != nil {
		return nil, fmt.Errorf("initialize is answered by %.1000s", text(got))
	}
	flags = map[string]bool{}
	for name, v := range answer.Result.EnvironmentInfo.Capabilities {
		flags[name] = v == true
	}
	return flags, nil
}

// dialer returns how a case connects: to the URL, or to an executor that it starts in a folder.
func (s *Suite) dialer(dir string, env []string) func(context.Context) (link, error) {
	if s.URL != "" && env == nil {
		return func(ctx context.Context) (link, error) { return dialWebSocket(ctx, s.URL, s.Token, s.limit(0)) }
	}
	return func(context.Context) (link, error) {
		p, err := startProgram(s.Command, dir, env, s.Log)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// cannot returns why a case cannot run with an executor that announces these flags.
func (s *Suite) cannot(c *Case, flags map[string]bool) error {
	needs, several, closed, binary := slices.Clone(c.Needs), false, false, false
	for _, step := range c.Steps {
		message := []byte(step.Send)
		if step.SendText != nil {
			message = []byte(*step.SendText)
		}
		if message != nil {
			used, _ := contracttest.Asks(message)
			needs = append(needs, used...)
		}
		closed = closed || step.ExpectClosed != nil
		several = several || step.Connect != nil || step.Drop != nil || cmp.Or(step.Conn, "a") != "a"
		binary = binary || step.SendBinary != nil
	}
	for _, name := range c.Programs {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: this machine has no %s", errSkip, name)
		}
	}
	for _, flag := range needs {
		if flags != nil && !flags[flag] {
			return fmt.Errorf("%w: the executor does not announce %s", errSkip, flag)
		}
	}
	switch {
	case c.Home && s.Command == "":
		return fmt.Errorf("%w: it needs an executor of its own, and no command was given", errSkip)
	case s.URL == "" && several:
		return fmt.Errorf("%w: it needs several connections, and no URL was given", errSkip)
	case s.URL == "" && closed:
		return fmt.Errorf("%w: on lines an executor may stay when it has ended the connection (rpc.md 1.4)", errSkip)
	case s.URL == "" && binary:
		return fmt.Errorf("%w: lines have no binary frames", errSkip)
	case c.Root && os.Geteuid() != 0:
		return fmt.Errorf("%w: it needs root", errSkip)
	}
	return nil
}

// converse holds one conversation.
func (s *Suite) converse(ctx context.Context, c *Case, dir string) error {
	work := filepath.Join(dir, "w")
	line := bytes.ReplaceAll(c.line, []byte("@NAME@"), []byte(rand.Text()))
	p := &player{exact: s.Exact}
	if c.Network {
		var err error
		if p.servers, err = listen(dir); err != nil {
			return err
		}
		defer p.servers.close()
		line = p.servers.fill(line)
	}
	var filled Case
	if err := json.Unmarshal(bytes.ReplaceAll(line, []byte("@DIR@"), []byte(work)), &filled); err != nil {
		return err
	}
	p.dial = s.dialer(dir, nil)
	if c.Home {
		env, err := home(ctx, work, filled.Before)
		if err != nil {
			return err
		}
		p.dial = s.dialer(filepath.Join(work, "ws"), env)
	}
	err := p.play(ctx, filled.Steps)
	for tries := 1; p.servers == nil && errors.Is(err, errSplit) && tries < 20; tries++ {
		err = p.play(ctx, filled.Steps)
	}
	return err
}

// home makes the folders of an executor that one case has for itself: those of its user, and its working
// directory. It returns its environment.
func home(ctx context.Context, dir, before string) ([]string, error) {
	for _, name := range []string{"home", "codex", "ws"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	if before != "" {
		if out, err := exec.CommandContext(ctx, "sh", "-c", before).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("before: %w: %.1000s", err, out)
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "CODEX_") || strings.HasPrefix(name, "XDG_") || name == "TMPDIR" || name == "HOME"
	})
	return append(env, "HOME="+filepath.Join(dir, "home"), "CODEX_HOME="+filepath.Join(dir, "codex")), nil
}

// areas returns the areas of cases, in the order of their first case.
func areas(results []Result) []string {
	seen := map[string]bool{}
	var all []string
	for _, r := range results {
		if !seen[r.Area] {
			seen[r.Area] = true
			all = append(all, r.Area)
		}
	}
	return all
}
