package agent

import (
	"errors"
	"maps"
	"slices"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/metrics"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// counters count events of an agent as they happen.
type counters struct {
	*metrics.Agent
	output [procs.PTY + 1]*metrics.Counter // by stream
}

// census counts the sessions, processes and so on that exist, once for each page.
type census struct {
	sessions, processes                  map[string]int // by state
	named, connections, watches, handles int
	helpers                              files.Stats
}

// measure makes the metrics of the agent.
func (a *Agent) measure() {
	set := metrics.NewSet()
	if a.cfg.Metrics != nil {
		set = a.cfg.Metrics.set
	}
	a.metrics.Agent = metrics.NewAgent(set, slices.Sorted(maps.Keys(new(connection).table())), approval.Outcomes())
	for _, s := range []procs.Stream{procs.Stdout, procs.Stderr, procs.PTY} {
		a.metrics.output[s] = set.Counter("agent_output_bytes_total", "Output of processes.", "stream", s.String())
	}

	var c *census
	set.Before(func() { c = a.census() })
	gauge := func(name, help string, value func() int, labels ...string) {
		set.Gauge(name, help, func() float64 { return float64(value()) }, labels...)
	}
	for _, state := range []string{"attached", "detached"} {
		gauge("agent_sessions", "Sessions, by whether a client is attached.", func() int { return c.sessions[state] }, "state", state)
	}
	for _, state := range []string{"starting", "running", "exited", "closed"} {
		gauge("agent_processes", "Processes, by what has ended: the program, or its output too.", func() int { return c.processes[state] }, "state", state)
	}
	gauge("agent_named_sessions", "Sessions with a name.", func() int { return c.named })
	gauge("agent_connections", "Connections of clients.", func() int { return c.connections }, "transport", a.cfg.Transport)
	gauge("agent_watches", "Watches over files.", func() int { return c.watches })
	gauge("agent_file_handles", "Files that clients have open.", func() int { return c.handles })
	gauge("agent_sockets", "Sockets that clients have open.", a.sockets.Open)
	gauge("agent_retained_bytes", "Memory of output that is kept for clients.", func() int { return int(a.budget.Used()) })
	gauge("agent_retained_limit_bytes", "Limit of agent_retained_bytes.", func() int { return int(a.budget.Max) })
	gauge("agent_helpers", "Helper processes for file requests.", func() int { return c.helpers.Idle }, "state", "idle")
	gauge("agent_helpers", "Helper processes for file requests.", func() int { return c.helpers.Busy }, "state", "busy")
	const looked = "File requests under a policy, by whether the policy was in use already."
	set.CountedBy("agent_helper_lookups_total", looked, func() uint64 { return c.helpers.Hits }, "result", "hit")
	set.CountedBy("agent_helper_lookups_total", looked, func() uint64 { return c.helpers.Misses }, "result", "miss")
	set.CountedBy("agent_helper_starts_total", "Helper processes started.", func() uint64 { return c.helpers.Starts })
}

func (a *Agent) census() *census {
	c := &census{sessions: map[string]int{}, processes: map[string]int{}, helpers: a.sandboxes.helpers.Stats()}
	a.mu.Lock()
	c.named = int(a.named.places.Used())
	sessions, connections := slices.Collect(maps.Values(a.sessions)), slices.Collect(maps.Keys(a.connections))
	a.mu.Unlock()
	for _, s := range sessions {
		s.count(c)
	}
	c.connections = len(connections)
	for _, conn := range connections {
		c.handles += conn.handles.Len()
		c.watches += conn.watches.count()
		conn.mu.Lock()
		if conn.watch != nil {
			c.watches++
		}
		conn.mu.Unlock()
	}
	return c
}

// count adds the session and its processes.
func (s *Session) count(c *census) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := "attached"
	if s.connection == nil {
		state = "detached"
	}
	c.sessions[state]++
	for _, p := range s.processes {
		if p.proc == nil {
			c.processes["starting"]++
			continue
		}
		switch exited, _, closed, _ := p.State(); {
		case closed:
			c.processes["closed"]++
		case exited:
			c.processes["exited"]++
		default:
			c.processes["running"]++
		}
	}
}

// refusal returns the metrics' name for the reason why a sandbox was refused.
func refusal(err error) string {
	if _, ok := errors.AsType[*sandbox.UnenforceableError](err); ok {
		return metrics.RefusedByHost
	}
	if _, ok := errors.AsType[openListenerError](err); ok {
		return metrics.RefusedByListener
	}
	return metrics.RefusedByOther
}
