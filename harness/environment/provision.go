package environment

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/execagent/execagent/protocol"
)

// MaxCapabilityRoots is how many capability roots an environment may report.
const MaxCapabilityRoots = 256

// CapabilityRoot is a folder with skills or a plugin, reported by the maker of an environment.
// Package capability reads its contents.
type CapabilityRoot struct {
	ID   string // not blank, and unique in the environment
	Path protocol.PathURI
}

// Provision registers an environment that is still being made: calls wait until
// [Environment.Ready] provides the transport. Provision of an id that it registered before
// returns that environment. Errors: client.ProtocolError, [ConflictError], [ErrClosed].
func (s *Set) Provision(id string, skills Skills) (*Environment, error) {
	if err := checkID(id); err != nil {
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
	if old, ok := s.environments[id]; ok {
		if !old.provisioned {
			return nil, &ConflictError{ID: id}
		}
		return old, nil
	}
	e := newEnvironment(s, id, skills)
	e.provisioned = true
	s.registerLocked(e)
	return e, nil
}

// Ready reports that the environment of [Set.Provision] exists, also after [Environment.Fail]. The
// environment connects once it is needed, at once if a call already waits. Its capability roots
// count for every thread while it is ready. A second call must have the same transport and roots,
// and changes nothing.
func (e *Environment) Ready(t Transport, roots ...CapabilityRoot) error {
	if !e.provisioned {
		return &ConflictError{ID: e.id}
	}
	if t == nil {
		return configErrorf("environment `%s` has no transport", e.id)
	}
	if err := t.check(); err != nil {
		return err
	}
	if err := checkRoots(roots); err != nil {
		return configErrorf("environment `%s` reports %v", e.id, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return ErrClosed
	case e.transport != nil && !reflect.DeepEqual(e.transport, t):
		return configErrorf("environment `%s` is already ready with another transport", e.id)
	case e.transport != nil && !slices.Equal(e.roots, roots):
		return configErrorf("environment `%s` is already ready with other capability roots", e.id)
	case e.transport != nil:
		return nil
	}
	e.transport, e.unavailable, e.roots = t, nil, slices.Clone(roots)
	if e.wanted {
		_, _, _ = e.nextLocked() // callers that need the result ask for it
	}
	e.changeLocked()
	return nil
}

// CapabilityRoots returns the roots passed to [Environment.Ready], which the caller must not
// change.
func (e *Environment) CapabilityRoots() []CapabilityRoot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.roots
}

// checkRoots refuses roots that could not be distinguished.
func checkRoots(roots []CapabilityRoot) error {
	if len(roots) > MaxCapabilityRoots {
		return fmt.Errorf("%d capability roots, %d are allowed", len(roots), MaxCapabilityRoots)
	}
	seen := make(map[string]bool, len(roots))
	for _, r := range roots {
		switch {
		case strings.TrimSpace(r.ID) == "":
			return errors.New("a capability root with a blank id")
		case seen[r.ID]:
			return fmt.Errorf("two capability roots with the id `%.256s`", r.ID)
		case r.Path.IsZero():
			return fmt.Errorf("a capability root without a path: `%.256s`", r.ID)
		}
		seen[r.ID] = true
	}
	return nil
}

// Fail reports that the environment of [Set.Provision] could not be made. Waiting calls,
// and all calls until Ready, fail with an [UnavailableError]. After Ready, Fail is
// refused.
func (e *Environment) Fail(reason error) error {
	if !e.provisioned {
		return &ConflictError{ID: e.id}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return ErrClosed
	case e.transport != nil:
		return configErrorf("environment `%s` is already ready, but a later provisioning report failed: %v", e.id, reason)
	}
	e.unavailable = &UnavailableError{Err: reason}
	e.changeLocked()
	return nil
}
