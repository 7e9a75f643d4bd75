package environment

import (
	"fmt"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// Selection is one environment that a thread or a turn works with.
type Selection struct {
	ID    string
	Cwd   protocol.PathURI
	Roots []protocol.PathURI // of the workspace
}

// Step has the environments of one step of a model, as they were when it began: for each,
// the state and the handle that belong together (client.md 4.7). All work in the step
// uses this value and looks up no id again, so a replaced environment has no effect
// before the next step. A step is never stored.
type Step struct {
	ID           string
	Environments []Captured // in the order of the selection; the first is the primary one
	// Others are captured too, but not shown to the model: the thread only uses something in them,
	// such as skills.
	Others []Captured

	releases []func()
}

// Captured is one environment of a [Step].
type Captured struct {
	Selection
	// State is [Ready] only if startup had succeeded when the step began. A later loss of
	// the connection, which the client tries to recover, does not change it.
	State State
	Err   error // the reason of Failed; nil for other states
	// Client is the client of a ready environment. It is nil for a local environment that was not
	// used yet, and for all that are not ready.
	Client *client.Client
	// Environment is nil if the state is Missing. [Environment.Client] waits for an
	// environment that is starting or has failed.
	Environment *Environment
}

// Step captures the selected environments, and those of others that are not selected, all at the
// same moment. It waits for nothing. Then it starts those without a usable client, so that a later
// step may find them ready. The caller releases the step at its end.
func (s *Set) Step(id string, selection []Selection, others ...string) *Step {
	step := &Step{ID: id}
	s.mu.Lock()
	for _, selected := range selection {
		step.Environments = append(step.Environments, s.captureLocked(step, selected))
	}
	for _, other := range others {
		if _, known := step.Get(other); !known {
			step.Others = append(step.Others, s.captureLocked(step, Selection{ID: other}))
		}
	}
	s.mu.Unlock()
	for captured := range step.all {
		if captured.Environment != nil {
			captured.Environment.Start()
		}
	}
	return step
}

// captureLocked captures one environment for step.
func (s *Set) captureLocked(step *Step, selected Selection) Captured {
	captured := Captured{Selection: selected, State: Missing}
	if e, ok := s.environments[selected.ID]; ok {
		captured.Environment = e
		captured.State, captured.Client, captured.Err = e.Peek()
		step.releases = append(step.releases, e.holdLocked())
	}
	return captured
}

// all calls yield for each environment of the step.
func (s *Step) all(yield func(Captured) bool) {
	for _, list := range [][]Captured{s.Environments, s.Others} {
		for _, captured := range list {
			if !yield(captured) {
				return
			}
		}
	}
}

// Get returns the captured environment with an id, selected or not.
func (s *Step) Get(id string) (Captured, bool) {
	for captured := range s.all {
		if captured.ID == id {
			return captured, true
		}
	}
	return Captured{}, false
}

// Release ends the step: an environment that was replaced during it is closed once all
// steps that captured it are released. It may be called more than once.
func (s *Step) Release() {
	for _, release := range s.releases {
		release()
	}
}

// Check refuses a selection with an unknown or repeated id, or without a working directory
// (client.md 4.6).
func (s *Set) Check(selection []Selection) error {
	seen := map[string]bool{}
	for _, selected := range selection {
		if _, ok := s.Get(selected.ID); !ok {
			return fmt.Errorf("unknown turn environment id `%s`", selected.ID)
		}
		if seen[selected.ID] {
			return fmt.Errorf("duplicate turn environment id `%s`", selected.ID)
		}
		seen[selected.ID] = true
		if selected.Cwd.IsZero() {
			return fmt.Errorf("invalid cwd for environment `%s`: path is empty", selected.ID)
		}
	}
	return nil
}
