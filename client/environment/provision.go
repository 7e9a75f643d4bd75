package environment

import "reflect"

// Provision registers an environment that is still being made: there is nothing to connect
// to until [Environment.Ready] says so, and calls wait. Provision of an id that it has
// registered before returns that environment. Errors: client.ProtocolError,
// [ConflictError], [ErrClosed].
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

// Ready reports that the environment of [Set.Provision] is there, also after
// [Environment.Fail]. It connects if somebody has asked for it, or else when somebody
// does. A second report has to have the same transport, and changes nothing.
func (e *Environment) Ready(t Transport) error {
	if !e.provisioned {
		return &ConflictError{ID: e.id}
	}
	if t == nil {
		return configErrorf("environment `%s` has no transport", e.id)
	}
	if err := t.check(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return ErrClosed
	case e.transport != nil && !reflect.DeepEqual(e.transport, t):
		return configErrorf("environment `%s` is already ready with another transport", e.id)
	case e.transport != nil:
		return nil
	}
	e.transport, e.unavailable = t, nil
	if e.wanted {
		_, _, _ = e.nextLocked() // who needs the result asks for it
	}
	e.changeLocked()
	return nil
}

// Fail reports that the environment of [Set.Provision] could not be made. Those who wait
// get an [UnavailableError], and so does everybody until Ready is called. After that it is
// too late to fail: the report is refused.
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
