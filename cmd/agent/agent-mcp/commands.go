package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

const (
	defaultBytes, mostBytes = 16 << 10, 64 << 10   // of output in an answer
	leastBytes              = 256                  // fewer have no room for a beginning and an end
	mostTimeout             = 7 * 24 * 3600 * 1000 // of timeout_ms
)

// outcome is what is known of a command after a call.
type outcome struct {
	ProcessID    string   `json:"process_id"`
	Running      bool     `json:"running"`
	ExitCode     *int     `json:"exit_code,omitempty"`
	Signal       string   `json:"signal,omitempty"`
	Output       string   `json:"output"`
	OmittedBytes uint64   `json:"omitted_bytes"`
	OmittedAfter *uint64  `json:"omitted_after_seq,omitempty"`
	GoneBytes    uint64   `json:"gone_bytes,omitempty"`
	NextSeq      uint64   `json:"next_seq"`
	DurationMs   int64    `json:"duration_ms"`
	TimedOut     bool     `json:"timed_out,omitempty"`
	OutOfMemory  bool     `json:"out_of_memory,omitempty"`
	Denied       bool     `json:"sandbox_denied,omitempty"`
	SavedTo      string   `json:"saved_to,omitempty"`
	SavedBytes   *uint64  `json:"saved_bytes,omitempty"`
	Question     string   `json:"waits_for_answer,omitempty"`
	Notes        []string `json:"notes,omitempty"`
}

// gapMark stands where output was left out.
func gapMark(omitted uint64) string { return fmt.Sprintf("\n[… %d bytes left out …]\n", omitted) }

// runCommand is the tool exec.
func runCommand(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		Command   *string           `json:"command"`
		Argv      []string          `json:"argv"`
		Cwd       string            `json:"cwd"`
		Env       map[string]string `json:"env"`
		TTY       bool              `json:"tty"`
		Stdin     *string           `json:"stdin"`
		KeepStdin bool              `json:"keep_stdin"`
		Yield     *int64            `json:"yield_ms"`
		Timeout   *int64            `json:"timeout_ms"`
		Max       *int64            `json:"max_bytes"`
		SaveTo    string            `json:"save_to"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	yield, most := c.wait("yield_ms", args.Yield, 10_000), c.most(args.Max)
	// The command of a call that is repeated has started already.
	if id, from, again := c.repeated(); again {
		p, err := c.find(ctx, id)
		if err != nil {
			return nil, err
		}
		return c.report(ctx, p, p.after(from), yield, most, false)
	}
	switch {
	case (args.Command == nil) == (len(args.Argv) == 0):
		return nil, errors.New("give exactly one of command (a line for the shell) and argv (a program with its arguments)")
	case args.Stdin != nil && (args.TTY || args.KeepStdin):
		return nil, errors.New("stdin cannot be used with tty or keep_stdin: send the text with write_stdin")
	case args.SaveTo != "" && args.TTY:
		return nil, errors.New("save_to cannot be used with tty")
	}
	argv := args.Argv
	if args.Command != nil {
		argv = []string{shellOf(c.agent.info), "-c", *args.Command}
	}
	p := newProcess(shown(argv))
	p.writable, p.asks = args.TTY || args.KeepStdin, wayOf(c.request.Session) != noWay
	params := protocol.StartParams(*c.config.Start)
	params.Sandbox, params.EnvPolicy, params.NetworkProxy = c.agent.sandbox, c.agent.env, c.agent.network
	params.TTY, params.PipeStdin = args.TTY, args.KeepStdin || args.Stdin != nil
	params.Env = map[string]string{}
	if args.TTY {
		params.Env["TERM"] = "xterm-256color"
	}
	maps.Copy(params.Env, c.config.Env)
	maps.Copy(params.Env, args.Env)
	dir, err := c.path(ctx, args.Cwd)
	if err != nil {
		return nil, err
	}
	params.Cwd = protocol.NewPathURI(dir)
	if args.SaveTo != "" {
		if p.savedTo, err = c.path(ctx, args.SaveTo); err != nil {
			return nil, err
		}
		argv = append([]string{"/bin/sh", "-c", `exec >"$0" 2>&1 && exec "$@"`, p.savedTo}, argv...)
	}
	params.Argv = argv
	if args.Timeout != nil {
		params.TimeoutMs = new(uint64(c.within("timeout_ms", args.Timeout, 0, 1, mostTimeout)))
	}
	starting, cancel := context.WithDeadlineCause(c.ctx, c.began.Add(callLimit), errLate)
	defer cancel()
	if err := c.executor.start(starting, c.agent, p, params); err != nil {
		return nil, c.notStarted(err, dir, argv[0])
	}
	c.acted = true
	if args.Stdin != nil {
		c.executor.run(c.agent, func() { p.feed(*args.Stdin) })
	}
	return c.report(ctx, p, place{}, yield, most, false)
}

// notStarted says why a command was not started.
func (c *call) notStarted(err error, dir, name string) error {
	refused, ok := errors.AsType[*client.ServerError](err)
	if !ok {
		return err
	}
	switch cause := refused.Err.Cause(); {
	case refused.Err.Reason() == protocol.ReasonExecPolicy:
		return fmt.Errorf("the rules do not let this command run: %s", refused.Err.Message)
	case cause != nil && cause.What == protocol.WhatCwd:
		return fmt.Errorf("the directory %s cannot be used: %s", dir, refused.Err.Message)
	case cause != nil && cause.What == protocol.WhatProgram && cause.Name == "ENOENT":
		return fmt.Errorf("%s: command not found (argv names a program; command takes a line of shell)", name)
	}
	return errors.New(refused.Err.Message)
}

// feed writes the input of a command and ends it. It ends with the process or the client.
func (p *process) feed(input string) {
	ctx := context.Background()
	if input != "" && p.handle.Write(ctx, []byte(input)) != nil {
		return // the command has ended, or has closed its input
	}
	err := p.handle.CloseStdin(ctx)
	if _, missing := errors.AsType[*client.UnsupportedError](err); missing {
		p.note("the agent cannot end the input of a command, so the command may wait for more")
	}
}

// readOutput is the tool read_output.
func readOutput(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		ID    string  `json:"process_id"`
		After *uint64 `json:"after_seq"`
		Wait  *int64  `json:"wait_ms"`
		Max   *int64  `json:"max_bytes"`
		Tail  bool    `json:"tail"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	p, err := c.find(ctx, args.ID)
	if err != nil {
		return nil, err
	}
	from := p.after(0)
	if args.After != nil {
		from = p.after(*args.After)
	}
	return c.report(ctx, p, from, c.wait("wait_ms", args.Wait, 10_000), c.most(args.Max), args.Tail)
}

// writeStdin is the tool write_stdin.
func writeStdin(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		ID    string `json:"process_id"`
		Text  string `json:"text"`
		Close bool   `json:"close"`
		Wait  *int64 `json:"wait_ms"`
		Max   *int64 `json:"max_bytes"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	return c.act(ctx, args.ID, args.Wait, 1000, args.Max, func(p *process, now state) error {
		switch {
		case now.ended():
			return fmt.Errorf("%s has ended: read_output returns its output", p.id)
		case !p.writable:
			return fmt.Errorf("%s takes no input: start such a command with tty or keep_stdin", p.id)
		}
		c.acted = true
		var err error
		if args.Text != "" {
			err = p.handle.Write(ctx, []byte(args.Text))
		}
		if err == nil && args.Close {
			err = p.handle.CloseStdin(ctx)
		}
		if wrong, ok := errors.AsType[*client.WriteError](err); ok {
			return fmt.Errorf("%s takes no input any more (%s): start such a command with tty or keep_stdin", p.id, wrong.Status)
		}
		return err
	})
}

// sendSignal is the tool signal.
func sendSignal(ctx context.Context, c *call) (*mcp.CallToolResult, error) {
	var args struct {
		ID     string `json:"process_id"`
		Signal string `json:"signal"`
		Wait   *int64 `json:"wait_ms"`
		Max    *int64 `json:"max_bytes"`
	}
	if err := c.arguments(&args); err != nil {
		return nil, err
	}
	return c.act(ctx, args.ID, args.Wait, 2000, args.Max, func(p *process, _ state) error {
		c.acted = true
		switch args.Signal {
		case "", "interrupt":
			return p.handle.Signal(ctx, protocol.SignalInterrupt)
		case "terminate":
			return p.handle.Signal(ctx, protocol.SignalTerminate)
		case "kill":
			return p.handle.Terminate(ctx)
		}
		return fmt.Errorf("signal %.40q is not interrupt, terminate or kill", args.Signal)
	})
}

// act does something to a command, and reports what the command prints then. A call that is repeated does nothing again.
// wait and most are arguments of the call; without wait it waits for so many milliseconds as patience says.
func (c *call) act(ctx context.Context, id string, wait *int64, patience int64, most *int64, do func(p *process, now state) error) (*mcp.CallToolResult, error) {
	p, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	pause, size := c.wait("wait_ms", wait, patience), c.most(most)
	of, from, again := c.repeated()
	if again && of != p.id {
		return nil, errOtherState
	}
	if !again {
		now := p.state()
		from = now.seq
		if err := do(p, now); err != nil {
			return nil, err
		}
	}
	return c.report(ctx, p, p.after(from), pause, size, false)
}

// wait returns for how many milliseconds a call waits for a command.
func (c *call) wait(name string, n *int64, otherwise int64) int64 {
	return c.within(name, n, otherwise, 0, callLimit.Milliseconds())
}

// most returns how many bytes of output an answer has.
func (c *call) most(n *int64) int {
	return int(c.within("max_bytes", n, defaultBytes, leastBytes, mostBytes))
}

// repeated reports whether a client was asked something by an answer, and calls again with the same arguments and the
// state of that answer: what the call has to do is done, and its output begins after the event from. Anybody may have
// made up the state, so it says no more than the arguments of read_output.
func (c *call) repeated() (id string, from uint64, again bool) {
	id, seq, again := strings.Cut(c.request.Params.RequestState, " ")
	from, err := strconv.ParseUint(seq, 10, 64)
	return id, from, again && err == nil
}

var errOtherState = errors.New("the requestState is that of another command: call again without it")

// report waits for the end of a process, and is the answer about it.
func (c *call) report(ctx context.Context, p *process, from place, wait int64, most int, tail bool) (*mcp.CallToolResult, error) {
	if q := c.await(ctx, p, c.until(wait)); q != nil {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{q.id: q.form()}, RequestState: fmt.Sprintf("%s %d", p.id, from.seq)}, nil
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errLate) {
		return nil, context.Cause(ctx) // the client has cancelled the call; the process lives
	}
	now := p.state()
	taken := errors.Is(now.err, client.ErrTaken)
	if now.err != nil && !now.exited && !taken {
		return nil, now.err
	}
	part := p.excerpt(from, most, tail)
	out := &outcome{
		ProcessID: p.id, Running: !now.exited, Output: part.text, OmittedBytes: part.omitted, OmittedAfter: part.reread, GoneBytes: part.gone, NextSeq: part.next,
		DurationMs: p.age(now).Milliseconds(), TimedOut: now.TimedOut, OutOfMemory: now.OutOfMemory, Denied: now.denied, SavedTo: p.savedTo,
	}
	if now.exited {
		out.ExitCode = &now.code
		if name := unix.SignalName(syscall.Signal(now.code - 128)); now.code > 128 {
			out.Signal = name
		}
	}
	if p.savedTo != "" {
		c.addSaved(ctx, p, out, most)
	}
	if q, _, _ := c.executor.desk.about(p.id); q != nil {
		out.Question = short(q.text, maxNote)
	}
	out.Notes = append(c.notes, p.takeNotes()...)
	if taken && !now.exited {
		out.Notes = append(out.Notes, "another server has taken the session of this one; the command runs on, and the next call takes the session back")
	}
	if state, _ := c.agent.client.State(); state == client.Recovering && !now.exited {
		out.Notes = append(out.Notes, "the connection to the agent is lost, and is being made again: this is what was known before")
	}
	if from.lost {
		out.Notes = append(out.Notes, "older output is not kept any more")
	}
	if now.exited && !now.closed {
		out.Notes = append(out.Notes, "something that the command has started in the background runs on, and may print more")
	}
	if r := now.refused; r != nil {
		for _, one := range r.List[:min(len(r.List), maxNotes)] {
			out.Notes = append(out.Notes, "sandbox: "+short(one.Text, maxNote))
		}
		if r.Note != "" {
			out.Notes = append(out.Notes, "sandbox: "+short(r.Note, maxNote))
		}
	}
	return answer(out.words(), out), nil
}

// age returns how long a process has run.
func (p *process) age(now state) time.Duration {
	if now.endedAt.IsZero() {
		return time.Since(p.started)
	}
	return now.endedAt.Sub(p.started)
}

// words is the outcome as text.
func (o *outcome) words() string {
	var b strings.Builder
	b.WriteString(o.Output)
	if o.Output != "" && !strings.HasSuffix(o.Output, "\n") {
		b.WriteByte('\n')
	}
	took := (time.Duration(o.DurationMs) * time.Millisecond).String()
	switch {
	case o.Running:
		fmt.Fprintf(&b, "[%s still runs after %s; next_seq %d", o.ProcessID, took, o.NextSeq)
	case o.TimedOut:
		fmt.Fprintf(&b, "[%s was ended after %s, because its timeout_ms was over", o.ProcessID, took)
	case o.OutOfMemory:
		fmt.Fprintf(&b, "[%s ended with exit code %d after %s, because its memory was used up", o.ProcessID, *o.ExitCode, took)
	case o.Signal != "":
		fmt.Fprintf(&b, "[%s ended with exit code %d (%s) after %s", o.ProcessID, *o.ExitCode, o.Signal, took)
	default:
		fmt.Fprintf(&b, "[%s ended with exit code %d after %s", o.ProcessID, *o.ExitCode, took)
	}
	if o.OmittedBytes > 0 {
		fmt.Fprintf(&b, "; %d bytes are left out", o.OmittedBytes)
		if o.OmittedAfter != nil {
			fmt.Fprintf(&b, ": read_output with after_seq %d and a larger max_bytes reads on there", *o.OmittedAfter)
		}
		if o.GoneBytes > 0 {
			fmt.Fprintf(&b, ", but %d bytes are gone (save_to keeps all)", o.GoneBytes)
		}
	}
	if o.SavedTo != "" && o.SavedBytes != nil {
		fmt.Fprintf(&b, "; %d bytes are in %s", *o.SavedBytes, o.SavedTo)
	}
	b.WriteString("]\n")
	if o.Question != "" {
		fmt.Fprintf(&b, "[it waits for the user's answer: %s]\n", o.Question)
	}
	addNotes(&b, o.Notes)
	return b.String()
}

// addSaved adds the beginning and the end of the file that a command prints to.
func (c *call) addSaved(ctx context.Context, p *process, out *outcome, most int) {
	file, err := c.agent.files.Open(ctx, p.savedTo, protocol.OpenRead)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) { // it has not begun
			out.Notes = append(out.Notes, plain(ctx, err).Error())
		}
		return
	}
	defer file.Close()
	info, err := c.agent.files.Stat(ctx, p.savedTo)
	if err != nil {
		return
	}
	size := int64(info.Size)
	out.SavedBytes = new(uint64(size))
	read := func(at, n int64) string {
		part := make([]byte, n)
		got, err := file.ReadAtContext(ctx, part, at)
		if err != nil && !errors.Is(err, io.EOF) {
			out.Notes = append(out.Notes, plain(ctx, err).Error())
		}
		return text(part[:got])
	}
	if size <= int64(most) {
		out.Output = read(0, size)
		return
	}
	half := int64(most / 2)
	out.OmittedBytes = uint64(size - 2*half)
	out.Output = read(0, half) + gapMark(out.OmittedBytes) + read(size-half, half)
}

// listed is a command in the answer of processes.
type listed struct {
	ProcessID   string `json:"process_id"`
	Command     string `json:"command"`
	State       string `json:"state"`
	ExitCode    *int   `json:"exit_code,omitempty"`
	AgeMs       int64  `json:"age_ms"`
	UnreadBytes uint64 `json:"unread_bytes"`
}

// listProcesses is the tool processes.
func listProcesses(_ context.Context, c *call) (*mcp.CallToolResult, error) {
	if err := c.arguments(new(struct{})); err != nil {
		return nil, err
	}
	data := struct {
		Session   string   `json:"session,omitempty"`
		Processes []listed `json:"processes"`
	}{Session: c.executor.name(), Processes: []listed{}}
	var b strings.Builder
	for _, p := range c.executor.all(c.agent) {
		now := p.state()
		l := listed{ProcessID: p.id, Command: p.command, State: "running", AgeMs: time.Since(p.started).Milliseconds(), UnreadBytes: p.unread()}
		state := "runs"
		if now.ended() {
			l.State, l.ExitCode = "ended", &now.code
			state = fmt.Sprintf("ended with exit code %d", now.code)
		}
		if q, _, _ := c.executor.desk.about(p.id); q != nil {
			l.State, state = "waiting", "waits for an answer of the user"
		}
		data.Processes = append(data.Processes, l)
		fmt.Fprintf(&b, "%s %s, started %s ago, %d bytes unread: %s\n", p.id, state, time.Since(p.started).Round(time.Second), l.UnreadBytes, l.Command)
	}
	if len(data.Processes) == 0 {
		b.WriteString("no commands\n")
	}
	return answer(b.String(), data), nil
}

// name returns the name of the session.
func (e *executor) name() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.session
}
