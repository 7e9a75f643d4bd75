package agent

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// refused has what was refused to one process, if somebody wants to know (sandbox.md 9.3): its client, or
// the operator. The methods may be called on nil.
type refused struct {
	log    refusals.Log
	cgroup *procs.Cgroup // nil: the process has no limits there
	asked  protocol.ProcessLimits
	once   sync.Once // adds what the sandbox has noted
	note   string    // set by once
}

func (r *refused) add(what refusals.Refusal) {
	if r != nil {
		r.log.Add(what)
	}
}

// limit notes the group that limits the process, and the limits of the request; nil: it has none.
func (r *refused) limit(g *procs.Cgroup, asked *protocol.ProcessLimits) {
	if r == nil {
		return
	}
	if r.cgroup = g; asked != nil {
		r.asked = *asked
	}
}

// gather takes what the sandbox of a process, which has exited, has noted.
func (s *Session) gather(p *process, code int) {
	r := p.refused
	if r == nil {
		return
	}
	r.once.Do(func() {
		var noted refusals.Log
		p.box.Refused(&noted)
		pids, memory := r.cgroup.Exceeded()
		if pids > 0 {
			noted.Add(refusals.Refusal{Layer: refusals.Limit, Operation: refusals.Use, Subject: "more processes", Reason: reasonOf(r.asked.Processes, "processes", "the operator limits them (--cgroup-pids)"), Times: pids})
		}
		if memory > 0 {
			noted.Add(refusals.Refusal{Layer: refusals.Limit, Operation: refusals.Use, Subject: "more memory", Reason: reasonOf(r.asked.MemoryBytes, "memoryBytes", "the operator limits it (--cgroup-memory)") + ", so a process was ended", Times: memory})
		}
		all, more := noted.All()
		for _, one := range all {
			s.agent.metrics.RefusedBy(one.Layer, one.Times)
		}
		r.log.AddAll(all, more)
		// The guess comes before the lines about refusals, which are output too.
		if p.sandboxDenied(code) {
			r.note = p.box.Limits(code, false, refusals.Words)
		}
		// The output is searched only where the answer counts.
		if untold := p.box.Untold(code, refusals.Words); r.note == "" && untold != "" && approval.LooksOffline(p.Read(0, nil).Chunks) {
			r.note = untold
		}
	})
}

// lastWords returns the lines with which a process ends; none if its client is told otherwise. Refused
// programs are left out, because their lines came when they were refused.
func (s *Session) lastWords(p *process, code int) []byte {
	s.gather(p, code)
	if p.refused == nil || s.peer.Load() != nil && s.refusals.Load() {
		return nil
	}
	all, more := p.refused.log.All()
	all = slices.DeleteFunc(all, func(r refusals.Refusal) bool { return r.Layer == refusals.Program })
	lines := refusals.Lines(all, more, code != 0, refusals.Words)
	if p.refused.note != "" {
		lines = append(lines, p.refused.note)
	}
	if len(lines) == 0 {
		return nil
	}
	end := "\n"
	if p.TTY() {
		end = "\r\n"
	}
	var text strings.Builder
	if chunks := p.Read(0, nil).Chunks; len(chunks) > 0 && !bytes.HasSuffix(chunks[len(chunks)-1].Data, []byte("\n")) {
		text.WriteString(end) // the last line of the process has no end
	}
	for _, line := range lines {
		text.WriteString("sandbox: " + line + end)
	}
	return []byte(text.String())
}

// all returns the refusals of a process that has exited, for its client; nil: none is known.
func (r *refused) all() *protocol.Refusals {
	if r == nil {
		return nil
	}
	list, more := r.log.All()
	if len(list) == 0 && more == 0 && r.note == "" {
		return nil
	}
	told := &protocol.Refusals{List: make([]protocol.Refusal, len(list)), More: more, Note: r.note}
	for i, one := range list {
		told.List[i] = protocol.Refusal{
			Layer: string(one.Layer), Operation: string(one.Operation), Subject: one.Subject, Reason: one.Reason,
			Needs: string(one.Need), At: one.At, Times: one.Times, Text: one.Line(refusals.Words),
		}
	}
	return told
}
