package environment

import (
	"context"
	"slices"
	"sync"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/rpc"
)

// Config says how to connect to the environments of a [Set].
type Config struct {
	// Connect makes the connections to environments with a transport. If it is nil, there are no
	// such environments.
	Connect Connector
	// Local opens a connection to an executor in this process: one end of an rpc.Pipe
	// whose other end an agent serves. If it is nil, there is no local environment.
	Local func(context.Context) (rpc.Conn, error)
}

// Set has the environments of a process by their ids. Its methods may be called concurrently.
type Set struct {
	cfg      Config
	standard string // the default; "": none
	closing  sync.WaitGroup

	mu           sync.Mutex // guards what follows
	environments map[string]*Environment
	order        []string                  // the ids as they were registered
	live         map[*Environment]struct{} // all that are not closed, including replaced ones
	closed       bool
}

// New makes the environments of a plan. Those with a URL and those behind Noise begin to
// connect at once, in the background; a program is started when it is first needed. The
// caller closes the set.
func New(cfg Config, plan Plan) (*Set, error) {
	if err := plan.check(); err != nil {
		return nil, err
	}
	if plan.IncludeLocal && cfg.Local == nil {
		return nil, configErrorf("local environment has no executor")
	}
	if len(plan.Entries) > 0 && cfg.Connect == nil {
		return nil, errNoConnector
	}
	s := &Set{cfg: cfg, standard: plan.Default, environments: map[string]*Environment{}, live: map[*Environment]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if plan.IncludeLocal {
		e := newEnvironment(s, Local, Skills{})
		e.local = true
		s.registerLocked(e)
	}
	for _, entry := range plan.Entries {
		s.registerLocked(s.remote(entry))
	}
	return s, nil
}

var errNoConnector = configErrorf("environments with a transport need a connector")

func (s *Set) remote(entry Entry) *Environment {
	e := newEnvironment(s, entry.ID, entry.Skills)
	e.transport = entry.Transport
	return e
}

// connector makes what a client needs, for a transport or, without one, for the local
// environment.
func (s *Set) connector(t Transport) (client.Config, error) {
	if t == nil {
		return client.Config{Dial: s.cfg.Local}, nil
	}
	return s.cfg.Connect(t)
}

// registerLocked puts e into the set, and replaces another one with its id.
func (s *Set) registerLocked(e *Environment) {
	e.holds = 1
	s.live[e] = struct{}{}
	old := s.environments[e.id]
	s.environments[e.id] = e
	if old == nil {
		s.order = append(s.order, e.id)
	} else {
		s.releaseLocked(old)
	}
	if e.transport != nil && e.transport.eager() {
		e.Start()
	}
}

// releaseLocked releases one hold of e. The last release closes e, in the background.
func (s *Set) releaseLocked(e *Environment) {
	if e.holds--; e.holds > 0 || s.closed {
		return
	}
	delete(s.live, e)
	s.closing.Go(e.close)
}

// Close ends all environments with their clients, including replaced ones that are
// still held, and waits for them.
func (s *Set) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true // from here on nothing else begins to close
		for e := range s.live {
			s.closing.Go(e.close)
		}
	}
	s.mu.Unlock()
	s.closing.Wait()
	return nil
}

// Get returns the environment with an id. The environment is valid until it is replaced,
// and longer for its holders, see [Environment.Hold] and [Step].
func (s *Set) Get(id string) (*Environment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.environments[id]
	return e, ok
}

// Default returns the environment that is used if none is named. There may be none:
// then there are no shell and no file tools.
func (s *Set) Default() (*Environment, bool) { return s.Get(s.standard) }

// DefaultID returns the id of the default environment, "" if there is none.
func (s *Set) DefaultID() string { return s.standard }

// DefaultIDs returns the environments of a thread that names none: the default first,
// then all others. It is empty if there is no default.
func (s *Set) DefaultIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.standard == "" {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(s.order), func(id string) bool { return id == s.standard })
	return append([]string{s.standard}, others...)
}

// Upsert registers an environment, or silently replaces the one with the same id; the
// default does not change. The replaced environment lives on while it is held. Then its
// calls fail and its unfinished attempt to connect ends. The id may be anything but ""
// and "local". Errors: client.ProtocolError, [ConflictError], [ErrClosed].
func (s *Set) Upsert(entry Entry) (*Environment, error) {
	if err := entry.check(); err != nil {
		return nil, err
	}
	if s.cfg.Connect == nil {
		return nil, errNoConnector
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if old, ok := s.environments[entry.ID]; ok && old.provisioned {
		return nil, &ConflictError{ID: entry.ID}
	}
	e := s.remote(entry)
	s.registerLocked(e)
	return e, nil
}

// Hold keeps the environment open after it was replaced, until release is called. It
// does not keep it open after the set is closed.
func (e *Environment) Hold() (release func()) {
	e.set.mu.Lock()
	defer e.set.mu.Unlock()
	return e.holdLocked()
}

// holdLocked is Hold while set.mu is locked.
func (e *Environment) holdLocked() (release func()) {
	if e.holds == 0 {
		return func() {} // closed
	}
	e.holds++
	return sync.OnceFunc(func() {
		e.set.mu.Lock()
		defer e.set.mu.Unlock()
		e.set.releaseLocked(e)
	})
}
