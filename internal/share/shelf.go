package share

import "slices"

// A Shelf has things that can be thrown away. An owner alone can have all of it. If there are too
// many, the owner who has the most loses the one that was put there first. The zero value has room
// for nothing. The user of a Shelf guards it by a mutex.
type Shelf[T comparable] struct {
	Max    int64
	held   Pool
	things map[string][]T // by owner; those that were put there first are at the front
}

// Put adds a thing. If there are too many then, it returns the one that was thrown away.
func (s *Shelf[T]) Put(owner string, thing T) (lost T, full bool) {
	if s.things == nil {
		s.things = map[string][]T{}
	}
	s.things[owner] = append(s.things[owner], thing)
	s.held.Add(owner, 1)
	most, over := s.held.Over(s.Max)
	if over <= 0 {
		return lost, false
	}
	lost = s.things[most][0]
	s.Remove(most, lost)
	return lost, true
}

// Remove removes a thing, if it is there.
func (s *Shelf[T]) Remove(owner string, thing T) {
	i := slices.Index(s.things[owner], thing)
	if i < 0 {
		return
	}
	s.held.Give(owner, 1)
	if s.things[owner] = slices.Delete(s.things[owner], i, i+1); len(s.things[owner]) == 0 {
		delete(s.things, owner)
	}
}

// Len returns the number of things.
func (s *Shelf[T]) Len() int { return int(s.held.Used()) }
