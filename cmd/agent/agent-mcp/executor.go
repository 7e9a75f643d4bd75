package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/mcpconfig"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/transport"
)

const (
	// maxRunning bounds the commands that run at once, and maxEnded the ended commands whose output is kept.
	maxRunning, maxEnded = 64, 32
	clientName           = "execagent-mcp"
)

// executor is the agent that commands run on. It connects at the first call, and again when its client has failed: a
// server whose agent cannot be reached starts, and says so in the answers to calls.
type executor struct {
	config *mcpconfig.Config
	sys    program.System
	desk   *desk
	turn   chan struct{} // has a value while nobody connects

	mu      sync.Mutex // guards what follows
	session string     // the name of the session; "": it has none
	before  bool       // the session was opened by this program
	now     *agent
	last    int // the number of the last process
}

// agent is an executor that was reached, with one client.
type agent struct {
	client  *client.Client
	info    *protocol.EnvironmentInfo
	dir     string
	roots   []string // resolved; nil: paths are not limited
	sandbox *protocol.Sandbox
	env     *protocol.EnvPolicy
	network *protocol.NetworkProxy
	files   *client.FS

	processes map[string]*process // guarded by executor.mu
	over      bool                // nothing is run any more; guarded by executor.mu
	running   sync.WaitGroup
}

func newExecutor(config *mcpconfig.Config, sys program.System) *executor {
	e := &executor{config: config, sys: sys, turn: make(chan struct{}, 1), session: config.Session}
	e.desk = newDesk(config.Ask, e.note)
	e.turn <- struct{}{}
	if e.session == "" && config.Agent == nil {
		e.session = sessions.NewName()
	}
	return e
}

var errClosed = errors.New("the server ends")

// reach returns the agent, and connects if there is no client that works.
func (e *executor) reach(ctx context.Context) (*agent, error) {
	select {
	case <-e.turn:
		defer func() { e.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	e.mu.Lock()
	old := e.now
	e.mu.Unlock()
	if old != nil {
		select {
		case <-old.client.Done():
			e.drop(old)
		default:
			return old, nil
		}
	}
	a, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.now = a
	e.mu.Unlock()
	return a, nil
}

// connect makes an agent with a new client, and finds the commands of its session.
func (e *executor) connect(ctx context.Context) (*agent, error) {
	c, err := e.dial(ctx)
	if err != nil {
		return nil, err
	}
	a := &agent{client: c, processes: map[string]*process{}}
	if err = e.prepare(ctx, a); err == nil {
		err = e.find(ctx, a)
	}
	if err != nil {
		e.drop(a)
		return nil, err
	}
	return a, nil
}

// dial returns a client. It takes the session from another client, such as an MCP server that has died and whose end
// the agent has not noticed, if the user has given the session a name, or it was opened here.
func (e *executor) dial(ctx context.Context) (*client.Client, error) {
	e.mu.Lock()
	name, take := e.session, e.config.Session != "" || e.before
	e.mu.Unlock()
	adapt := func(cfg *client.Config) {
		cfg.ClientName, cfg.Refusals = clientName, e.config.Refusals
		cfg.SessionName, cfg.Retain, cfg.Take = name, e.config.Retain, take && name != ""
		cfg.Approvals.Decide, cfg.Network.Decide = e.desk.command, e.desk.host
	}
	if e.config.Agent != nil {
		cfg := client.Config{Single: true, Dial: func(context.Context) (rpc.Conn, error) {
			return transport.StartCommand(transport.CommandConfig{Argv: e.config.Agent, Stderr: func(line string) {
				program.Complain(e.sys.Stderr, line)
			}})
		}}
		adapt(&cfg)
		return client.Connect(ctx, cfg)
	}
	c, err := e.config.Target.Connect(ctx, e.sys, adapt)
	if _, unknown := errors.AsType[*client.UnsupportedError](err); unknown && e.config.Session == "" && name != "" {
		e.mu.Lock()
		e.session = ""
		e.mu.Unlock()
		return e.dial(ctx)
	}
	e.mu.Lock()
	e.before = e.before || err == nil
	e.mu.Unlock()
	return c, err
}

// prepare finds out what commands and file operations may do on the agent.
func (e *executor) prepare(ctx context.Context, a *agent) (err error) {
	if a.info, err = a.client.Info(ctx); err != nil {
		return err
	}
	if a.dir, err = policy.Below(a.info, e.config.Dir); err != nil {
		return err
	}
	here := e.config.Agent != nil
	flags := &e.config.Policy
	environ := e.sys.Environ
	if here && (e.config.Confined || flags.CleanEnv) {
		shown := *flags
		shown.ShowSecrets = shown.ShowSecrets || !e.config.Confined
		environ, _ = shown.Environ(environ, e.config.Env)
	}
	if a.env = flags.EnvPolicyThere(); here {
		a.env = policy.EnvPolicyHere(e.sys.Environ, environ)
	}
	a.network = e.config.Start.NetworkProxy
	if a.network != nil {
		network := *a.network
		network.Proxy.TransparentTCP = !e.config.Plain && a.info.Capabilities.NetworkProxyTransparentTCP
		a.network = &network
	}
	if e.config.Confined {
		if err := e.confine(ctx, a, environ); err != nil {
			return err
		}
	}
	a.files = a.client.FS(a.sandbox)
	for _, root := range e.config.Roots {
		real, err := policy.Below(a.info, root)
		if err == nil {
			real, err = policy.FilesOf(a.client, a.info).Canonicalize(ctx, real)
		}
		if err != nil {
			return fmt.Errorf("--root: %w", err)
		}
		a.roots = append(a.roots, real)
	}
	return nil
}

// confine makes the sandbox that the flags describe.
func (e *executor) confine(ctx context.Context, a *agent, environ []string) error {
	host, err := policy.Here(e.sys.Lookup, environ), error(nil)
	if e.config.Agent == nil {
		host, err = policy.There(ctx, a.client, a.info)
	}
	if err != nil {
		return err
	}
	host.Cwd = a.dir
	plan, err := e.config.Policy.Plan(host)
	if err != nil {
		return err
	}
	if e.config.NetworkOn {
		plan.Profile.Network = sandbox.NetworkEnabled
	}
	a.sandbox, err = plan.At(ctx, a.client, a.info)
	return err
}

// numbered is the id of a process that an MCP server has started.
var numbered = regexp.MustCompile(`^p([1-9][0-9]{0,8})$`)

// find attaches to the commands that the session has already.
func (e *executor) find(ctx context.Context, a *agent) error {
	if !a.info.Capabilities.ProcessList {
		return nil
	}
	listed, err := a.client.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range listed {
		if m := numbered.FindStringSubmatch(p.ProcessID); m != nil {
			n, _ := strconv.Atoi(m[1])
			e.mu.Lock()
			e.last = max(e.last, n)
			e.mu.Unlock()
		}
	}
	for _, p := range listed[max(0, len(listed)-maxRunning-maxEnded):] {
		handle, err := a.client.Attach(ctx, p.ProcessID)
		if _, gone := errors.AsType[*client.ServerError](err); gone {
			continue // it has just been forgotten
		}
		if err != nil {
			return err
		}
		e.follow(a, foundProcess(handle, p))
	}
	return nil
}

// follow takes the output of a process from now on.
func (e *executor) follow(a *agent, p *process) {
	e.mu.Lock()
	a.processes[p.id] = p
	e.mu.Unlock()
	e.run(a, func() {
		p.follow()
		e.forget(a)
	})
}

// run runs f in a goroutine that ends with the client of the agent.
func (e *executor) run(a *agent, f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !a.over {
		a.running.Go(f)
	}
}

// forget drops the processes that ended first, if there are too many.
func (e *executor) forget(a *agent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ended []*process
	for _, p := range a.processes {
		if p.state().ended() {
			ended = append(ended, p)
		}
	}
	slices.SortFunc(ended, func(p, q *process) int { return p.state().endedAt.Compare(q.state().endedAt) })
	for _, p := range ended[:max(0, len(ended)-maxEnded)] {
		delete(a.processes, p.id)
	}
}

// start starts a command. The process is known before, because the agent may ask about it at once. ctx does not end
// when a call is cancelled: a client kills a command whose start was cancelled, and a cancelled call kills nothing.
func (e *executor) start(ctx context.Context, a *agent, p *process, params protocol.StartParams) (err error) {
	e.mu.Lock()
	running := 0
	for _, p := range a.processes {
		if !p.state().ended() {
			running++
		}
	}
	if running >= maxRunning {
		e.mu.Unlock()
		return fmt.Errorf("%d commands run already: end some of them with signal (processes lists them)", running)
	}
	e.last++
	p.id = "p" + strconv.Itoa(e.last)
	a.processes[p.id] = p
	e.mu.Unlock()

	params.ProcessID = p.id
	handle, err := a.client.Start(ctx, params)
	if err != nil {
		e.mu.Lock()
		delete(a.processes, p.id)
		e.mu.Unlock()
		return err
	}
	p.change(func() { p.handle = handle })
	e.follow(a, p)
	return nil
}

// note leaves a line for the next answer about a process.
func (e *executor) note(id, line string) {
	e.mu.Lock()
	var p *process
	if e.now != nil {
		p = e.now.processes[id]
	}
	e.mu.Unlock()
	if p != nil {
		p.note(line)
	}
}

// process finds a process by its id.
func (e *executor) process(a *agent, id string) (*process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := a.processes[id]; p != nil && p.begun() {
		return p, nil
	}
	if id == "" {
		return nil, errors.New("process_id is missing: exec returns it, and processes lists all")
	}
	return nil, fmt.Errorf("there is no command %.40q: it was forgotten, or the agent was restarted (processes lists all)", id)
}

// all returns the processes, in the order of their starts.
func (e *executor) all(a *agent) []*process {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*process, 0, len(a.processes))
	for _, p := range a.processes {
		all = append(all, p)
	}
	slices.SortFunc(all, func(p, q *process) int { return p.started.Compare(q.started) })
	return all
}

// close ends the client. A session that nobody has named ends with it, unless something runs there.
func (e *executor) close(ctx context.Context) {
	e.desk.close(ctx)
	e.mu.Lock()
	a, name := e.now, e.session
	e.mu.Unlock()
	if a == nil {
		return
	}
	if name != "" && e.config.Session == "" {
		if slices.ContainsFunc(e.all(a), func(p *process) bool { return !p.state().ended() }) {
			program.Complain(e.sys.Stderr, fmt.Sprintf("commands of session %s run on: agent mcp --session %[1]s finds them again, agent end --force %[1]s ends them", name))
		} else {
			_ = a.client.EndSession(ctx, a.client.SessionID()) // else the agent ends it later
		}
	}
	e.drop(a)
}

// drop ends the client of an agent, and waits for all that uses it. The session lives on.
func (e *executor) drop(a *agent) {
	e.mu.Lock()
	a.over = true
	e.mu.Unlock()
	_ = a.client.Close()
	a.running.Wait()
}

// below returns the absolute path of name, which may be relative to dir.
func below(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
