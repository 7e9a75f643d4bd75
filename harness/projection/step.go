package projection

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/execagent/execagent/harness/projection/internal/catalog"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
)

const (
	// maxServers is how many servers a step may have.
	maxServers = 128
	// maxConnectors is how many connectors a step may have.
	maxConnectors = 1024
	// namespace is the prefix of a server's name in the model's names of its tools.
	namespace = "mcp__"
)

// runtime is the servers that are projected together, and the other declarations with them.
type runtime struct {
	servers    []*mcpserver.Server
	connectors []string
	warnings   []string
	retired    atomic.Bool // another one has replaced it, and its statuses are not reported any more
	holds      int         // guarded by Thread.mu: one of the thread while this is current, one per step
	// releases drop our holds on the environments. Until then a replaced environment keeps its
	// client, which we need to stop its servers.
	releases []func()
}

// begin starts the servers of all sources. Of two servers with the same name, the first one counts.
func (t *Thread) begin(sources []source) *runtime {
	r := &runtime{}
	names, connectors := map[string]bool{}, map[string]bool{}
	for _, s := range sources {
		r.releases = append(r.releases, s.environment.Hold())
		for _, id := range s.declared.Connectors {
			if !connectors[id] && len(connectors) < maxConnectors {
				connectors[id] = true
				r.connectors = append(r.connectors, id)
			}
		}
		for _, spec := range s.declared.Servers {
			switch {
			case !t.cfg.Allow(&spec):
				continue
			case names[spec.Name]:
				r.warnings = append(r.warnings, fmt.Sprintf("plugin %.256q: there is another MCP server %s", spec.Plugin, spec.Name))
				continue
			case len(r.servers) == maxServers:
				r.warnings = append(r.warnings, fmt.Sprintf("plugin %.256q: MCP server %s is one too many", spec.Plugin, spec.Name))
				continue
			}
			names[spec.Name] = true
			r.servers = append(r.servers, mcpserver.Start(mcpserver.Config{
				Client: s.client,
				Notify: func(status Status) {
					if !r.retired.Load() {
						t.cfg.Notify(status)
					}
				},
				Info:         t.cfg.Info,
				StartTimeout: t.cfg.StartTimeout,
				CallTimeout:  t.cfg.CallTimeout,
				Restarts:     t.cfg.Restarts,
			}, spec))
		}
	}
	return r
}

// close ends all servers at once, and waits.
func (r *runtime) close() {
	var ending sync.WaitGroup
	for _, s := range r.servers {
		ending.Go(s.Close)
	}
	ending.Wait()
	for _, release := range r.releases {
		release()
	}
}

// Step has the servers, connectors and skills for one step of a model. Its methods may be called
// concurrently.
type Step struct {
	thread  *Thread
	runtime *runtime
	skills  *catalog.List
	message string
	news    bool
	once    sync.Once

	warnings []string
}

// Release ends the step: its runtime is shut down if it was replaced and no other step uses it. It
// may be called more than once.
func (s *Step) Release() {
	s.once.Do(func() {
		s.thread.mu.Lock()
		defer s.thread.mu.Unlock()
		s.thread.releaseLocked(s.runtime)
	})
}

// SkillsMessage returns the message about skills for the model before this step, in the developer's
// role. Usually ok is false, because the list has not changed.
func (s *Step) SkillsMessage() (message string, ok bool) { return s.message, s.news }

// Skills lists and reads the skills of the step.
func (s *Step) Skills() *SkillList { return s.skills }

// Connectors are the ids of the connectors of the step, each once, in order.
func (s *Step) Connectors() []string { return s.runtime.connectors }

// Warnings describe, for people, the errors in declarations.
func (s *Step) Warnings() []string {
	return slices.Concat(s.warnings, s.runtime.warnings, s.skills.Warnings())
}

// Statuses returns the status of each server, in order.
func (s *Step) Statuses() (all []Status) {
	for _, server := range s.runtime.servers {
		all = append(all, server.Status())
	}
	return all
}

// Wait waits until no server is starting any more. The error is the cause of ctx.
func (s *Step) Wait(ctx context.Context) error {
	for _, server := range s.runtime.servers {
		_ = server.Wait(ctx) // the status of a failed server has its error
	}
	return context.Cause(ctx)
}

// Tool is a tool of a server, in the form offered to a model.
type Tool struct {
	*mcp.Tool
	Namespace string // mcp__SERVER
	Server    string
	Plugin    string // the plugin that declares the server; "": the executor does
}

// Tools are the tools of the servers that are ready now.
func (s *Step) Tools() (all []Tool) {
	for _, server := range s.runtime.servers {
		status := server.Status()
		for _, tool := range server.Tools() {
			all = append(all, Tool{Tool: tool, Namespace: namespace + status.Name, Server: status.Name, Plugin: status.Plugin})
		}
	}
	return all
}

// UnknownServerError says that a step has no server with that name.
type UnknownServerError struct{ Server string }

func (e *UnknownServerError) Error() string {
	return fmt.Sprintf("there is no MCP server %.64q", e.Server)
}

// Call calls a tool of a server. It waits for a server that is starting.
func (s *Step) Call(ctx context.Context, server, tool string, arguments any) (*mcp.CallToolResult, error) {
	found, err := s.server(server)
	if err != nil {
		return nil, err
	}
	return found.Call(ctx, tool, arguments)
}

// Restart starts a failed server again, in the background, for this step and all others with the
// same runtime. It reports whether it does: see [mcpserver.Server.Restart].
func (s *Step) Restart(server string) (bool, error) {
	found, err := s.server(server)
	return err == nil && found.Restart(), err
}

func (s *Step) server(name string) (*mcpserver.Server, error) {
	for _, server := range s.runtime.servers {
		if server.Status().Name == name {
			return server, nil
		}
	}
	return nil, &UnknownServerError{name}
}
