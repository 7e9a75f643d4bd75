package agent

import (
	"context"
	"hash/maphash"
	"slices"

	"github.com/execagent/execagent/protocol"
)

// started returns the answer to a start that was done before, by the ids of its process and of the
// request; nil if there was none. If an earlier, lost connection has begun that start, started waits
// for its end. Later that connection begins nothing, see reserve.
func (s *Session) started(ctx context.Context, id, startID string) (*startResult, error) {
	if startID == "" {
		return nil, nil
	}
	for {
		s.mu.Lock()
		p, forgotten := s.processes[id], s.past.has(startID)
		if p != nil && p.startID != startID {
			p = nil
		}
		over := p != nil && p.proc != nil
		s.mu.Unlock()
		switch {
		case over:
			return &startResult{StartResult: p.answer}, nil
		case p != nil:
			if err := p.await(ctx); err != nil {
				return nil, err
			}
		case forgotten:
			e := protocol.InvalidRequest("process %.256s was started, has ended and is no longer kept", id)
			e.Data = []byte(`{"reason":"` + protocol.ReasonForgotten + `"}`)
			return nil, e
		default:
			return nil, nil
		}
	}
}

// maxPast is how many starts a session remembers whose processes are forgotten. A client that repeats
// a start has at most as many requests under way (1,024), so no more can have come after that start.
const maxPast = 1024

// past are the newest starts whose processes are forgotten, as hashes of their ids. If one of them
// were repeated, its command would run twice. A session's mutex guards it.
type past struct {
	seed   maphash.Seed
	hashes []uint64
	oldest int // index of the hash that is replaced next, once there are maxPast
}

func (p *past) add(startID string) {
	switch {
	case startID == "":
	case p.hashes == nil:
		p.seed = maphash.MakeSeed()
		fallthrough
	case len(p.hashes) < maxPast:
		p.hashes = append(p.hashes, maphash.String(p.seed, startID))
	default:
		p.hashes[p.oldest] = maphash.String(p.seed, startID)
		p.oldest = (p.oldest + 1) % maxPast
	}
}

func (p *past) has(startID string) bool {
	return len(p.hashes) > 0 && slices.Contains(p.hashes, maphash.String(p.seed, startID))
}
