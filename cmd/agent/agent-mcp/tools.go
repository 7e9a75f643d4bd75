package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/mcpconfig"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/protocol"
)

const (
	// callLimit is how long a call may take. Clients give up after a minute, some without a word.
	callLimit = 45 * time.Second
	// maxCalls bounds the calls that run at once.
	maxCalls = 64
	// maxArguments bounds the arguments of a call, in bytes.
	maxArguments = 8 << 20
	// maxProgress, maxNote and maxNotes bound what is said beside the output: bytes of a line, and lines.
	maxProgress, maxNote, maxNotes = 200, 1 << 10, 16
	// progressPause is the time between two progress notifications.
	progressPause = 5 * time.Second
)

// tools are the tools as clients see them. Without maxResultSizeChars, Claude Code puts answers of more than 50,000
// characters into a file on its own machine, and shows the model 2,000 of them.
//
//go:embed tools.json
var tools []byte

// server has the tools of one agent, for all clients.
type server struct {
	config   *mcpconfig.Config
	sys      program.System
	executor *executor
	mcp      *mcp.Server
	slots    chan struct{}
	editing  chan struct{} // one edit at a time, because an edit reads and then writes

	ctx    context.Context // ends with the server, and calls with it
	cancel context.CancelFunc
	late   context.Context // ends lastWords after ctx
}

// instructions are for the model.
const instructions = `Commands and files are on the machine that this server works on%s; relative paths start at its working directory. If an answer says that p7 still runs, call read_output with the process_id p7 until it has ended. Output that was left out can be read again with read_output (after_seq).`

func newServer(config *mcpconfig.Config, sys program.System) (*server, error) {
	s := &server{config: config, sys: sys, executor: newExecutor(config, sys), slots: make(chan struct{}, maxCalls), editing: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	late, end := context.WithCancel(context.Background())
	s.late = late
	context.AfterFunc(s.ctx, func() { time.AfterFunc(lastWords, end) })
	where := ""
	if config.Agent == nil {
		where = " (" + config.Target.Name() + ")"
	}
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "execagent", Title: "execagent", Version: build.Version()}, &mcp.ServerOptions{
		Instructions: fmt.Sprintf(instructions, where),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // the tools never change
		Logger:       config.Target.Logger(sys),
	})
	var all []*mcp.Tool
	if err := json.Unmarshal(tools, &all); err != nil {
		return nil, err
	}
	for _, t := range all {
		run := handlers[t.Name]
		if run == nil {
			return nil, fmt.Errorf("the tool %s does nothing", t.Name)
		}
		s.mcp.AddTool(t, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return s.call(ctx, r, run), nil
		})
	}
	return s, nil
}

// close ends all calls, and the client of the agent. A call that cannot write to its client is not waited for.
func (s *server) close() {
	s.cancel()
	for range maxCalls {
		select {
		case s.slots <- struct{}{}:
		case <-s.late.Done():
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.executor.close(ctx)
}

// handlers are the tools, by name.
var handlers = map[string]func(context.Context, *call) (*mcp.CallToolResult, error){
	"exec": runCommand, "read_output": readOutput, "write_stdin": writeStdin, "signal": sendSignal, "processes": listProcesses,
	"read_file": readFile, "write_file": writeFile, "edit": editFile, "search": searchFiles,
}

// call is a call of a tool.
type call struct {
	*server
	request *mcp.CallToolRequest
	began   time.Time
	agent   *agent
	notes   []string
	acted   bool // something was changed that must not be done twice
	retaken bool // the session was taken back
}

// call runs a tool. What goes wrong is an answer for the model, because errors of the protocol do not reach it.
func (s *server) call(ctx context.Context, r *mcp.CallToolRequest, run func(context.Context, *call) (*mcp.CallToolResult, error)) *mcp.CallToolResult {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return failure(fmt.Errorf("%d calls run already: wait until one of them has an answer", maxCalls))
	}
	if n := len(r.Params.Arguments); n > maxArguments {
		return failure(fmt.Errorf("the arguments have %d bytes, and at most %d are taken: write a large file in parts, with exec", n, maxArguments))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callLimit, errLate)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	c := &call{server: s, request: r, began: time.Now()}
	var err error
	if c.agent, err = s.executor.reach(ctx); err != nil {
		return failure(fmt.Errorf("the agent cannot be reached: %w", plain(ctx, err)))
	}
	s.executor.desk.answered(r.Params.InputResponses)
	result, err := run(ctx, c)
	if err != nil && !c.acted && c.takeBack(ctx, err) {
		result, err = run(ctx, c)
	}
	if err != nil {
		return failure(plain(ctx, err))
	}
	if !s.config.Data {
		result.StructuredContent = nil // clients would show it to the model, and not the text
	}
	return result
}

// takeBack takes the session from a client that has taken it, once in a call. A call that only waits does not, because
// two servers with one session would take it from each other for as long as both wait. It reports whether what has
// failed with err can be done again.
func (c *call) takeBack(ctx context.Context, err error) bool {
	lost, ok := errors.AsType[*client.DisconnectedError](err)
	if !ok || lost.Sent || c.retaken || !errors.Is(err, client.ErrTaken) {
		return false
	}
	c.retaken = true
	a, err := c.executor.reach(ctx)
	if err == nil {
		c.agent = a
	}
	return err == nil
}

// find finds a process by its id. A client whose session was taken may not have noticed, and knows no new processes.
func (c *call) find(ctx context.Context, id string) (*process, error) {
	p, missing := c.executor.process(c.agent, id)
	if missing == nil || id == "" || !c.agent.info.Capabilities.ProcessList {
		return p, missing
	}
	if _, err := c.agent.client.Processes(ctx); c.takeBack(ctx, err) {
		return c.executor.process(c.agent, id)
	}
	return nil, missing
}

var errLate = fmt.Errorf("no answer came within %v: the call may have been carried out, so look before you try again", callLimit)

// plain returns an error in words for a model: what happened, and what to try.
func plain(ctx context.Context, err error) error {
	lost, isLost := errors.AsType[*client.DisconnectedError](err)
	refused, isRefused := errors.AsType[*client.ServerError](err)
	missing, isMissing := errors.AsType[*client.UnsupportedError](err)
	path, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case context.Cause(ctx) != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errLate)):
		return context.Cause(ctx)
	case errors.Is(err, client.ErrTaken):
		return errors.New("another client took the session of this server during the call, so the call may have been carried out. Commands run on, and the next call takes the session back: look at processes before you try again (give each agent mcp a --session of its own)")
	case isLost && lost.Resume != nil && sessions.Unknown(lost.Resume):
		return errors.New("the agent was restarted or has given up the session, so its commands are gone: start them again")
	case isLost && lost.Sent:
		return errors.New("the connection to the agent was lost during the call, so the call may have been carried out: look at processes or at the file before you try again")
	case isLost:
		return errors.New("the connection to the agent is lost: try again")
	case isMissing:
		return fmt.Errorf("this agent is too old for that: %w", missing)
	case isPath && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: search with a glob finds names", path.Path)
	case isPath && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %s: the sandbox or the mode of the file does not allow it", path.Path, reason(path.Err))
	case isPath:
		return fmt.Errorf("%s: %s", path.Path, reason(path.Err))
	case isRefused:
		return errors.New(refused.Err.Message)
	}
	return err
}

// reason returns the words of an error, those of the agent alone if it has refused a request.
func reason(err error) string {
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return refused.Err.Message
	}
	return err.Error()
}

// failure is the answer of a call that has failed.
func failure(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: short(err.Error(), 4*maxNote)}}}
}

// note adds a line to the answer.
func (c *call) note(format string, args ...any) {
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, short(fmt.Sprintf(format, args...), maxNote))
	}
}

// arguments reads the arguments of a call into a struct. Unknown ones are refused, because a model that has misspelt
// a name would not notice.
func (c *call) arguments(to any) error {
	raw := c.request.Params.Arguments
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	from := json.NewDecoder(bytes.NewReader(raw))
	from.DisallowUnknownFields()
	err := from.Decode(to)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("the argument %s is a JSON %s, and has to be of type %s", wrong.Field, wrong.Value, kindOf(wrong.Type.Kind().String()))
	}
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "json: ")
		if name, unknown := strings.CutPrefix(text, "unknown field "); unknown {
			return fmt.Errorf("this tool has no argument %s: its schema names the arguments", short(name, maxProgress))
		}
		return fmt.Errorf("the arguments are not valid JSON: %s", text)
	}
	return nil
}

// kindOf returns the word of JSON Schema for a kind of Go.
func kindOf(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "integer"
	case kind == "bool":
		return "boolean"
	case kind == "slice":
		return "array"
	case kind == "map", kind == "struct":
		return "object"
	}
	return kind
}

// within returns a number of a call, or its default. It cuts what is too large or too small, and says so.
func (c *call) within(name string, n *int64, otherwise, least, most int64) int64 {
	if n == nil {
		return otherwise
	}
	if cut := min(max(*n, least), most); cut != *n {
		c.note("%s %d was changed to %d", name, *n, cut)
		return cut
	}
	return *n
}

// until returns the end of a wait of so many milliseconds, which is before the end of the call.
func (c *call) until(ms int64) time.Time {
	end := c.began.Add(callLimit - time.Second) // for the answer
	if wait := time.Now().Add(time.Duration(ms) * time.Millisecond); wait.Before(end) {
		return wait
	}
	return end
}

// await waits until p has ended or until has come, and tells progress meanwhile. If a question about p comes, await
// asks the user; q is a question that the answer of the call has to ask.
func (c *call) await(ctx context.Context, p *process, until time.Time) (q *question) {
	var telling sync.WaitGroup
	defer telling.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if token := c.request.Params.GetProgressToken(); token != nil {
		telling.Go(func() { c.tell(ctx, p, token) })
	}
	desk := c.executor.desk
	for {
		q, asking, changed := desk.about(p.id)
		if q != nil && !asking {
			switch wayOf(c.request.Session) {
			case noWay:
				if !p.asks { // else another client has started it, and is asked
					desk.settle(q, verdict{deny, "this MCP client cannot ask its user"})
					continue
				}
			case byAnswer:
				return q
			case byRequest:
				desk.askNow(ctx, c.request.Session, q)
				continue
			}
		}
		if p.wait(ctx, until, changed) || ctx.Err() != nil || !time.Now().Before(until) {
			return nil
		}
	}
}

// tell sends progress notifications, with the last line of output.
func (c *call) tell(ctx context.Context, p *process, token any) {
	tick := time.NewTicker(progressPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// A client that takes none gets its answer nevertheless.
			_ = c.request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: time.Since(c.began).Seconds(), Message: p.lastLine(),
			})
		case <-ctx.Done():
			return
		}
	}
}

// answer is an answer with text for the model, and the same as data.
func answer(text string, data any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: data}
}

// addNotes adds notes to a text for the model.
func addNotes(b *strings.Builder, notes []string) {
	for _, note := range notes {
		fmt.Fprintf(b, "[%s]\n", note)
	}
}

// short cuts a text to most bytes.
func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return program.Whole(text[:most]) + "…"
}

// shown returns a command in one line.
func shown(argv []string) string {
	if len(argv) == 3 && argv[1] == "-c" {
		return short(argv[2], maxProgress)
	}
	return short(strings.Join(argv, " "), maxProgress)
}

// shellOf returns the shell of the agent.
func shellOf(info *protocol.EnvironmentInfo) string {
	if info.Shell.Path == "" {
		return "/bin/sh"
	}
	return info.Shell.Path
}
