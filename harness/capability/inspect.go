package capability

import (
	"fmt"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
)

// Inspect returns the roots that could be used now, and warnings, for people, about the others. It
// starts no environment and waits for none. It does not warn about environments that are starting
// or recovering their connection.
func Inspect(set *environment.Set, roots []Root) (ready []Root, warnings []string) {
	type verdict struct {
		ready  bool
		reason string // why the root cannot be used
	}
	verdicts := map[string]verdict{}
	for _, r := range roots {
		v, decided := verdicts[r.EnvironmentID]
		if !decided {
			v.ready, v.reason = inspect(set, r.EnvironmentID)
			verdicts[r.EnvironmentID] = v
		}
		switch {
		case v.ready:
			ready = append(ready, r)
		case v.reason != "":
			warnings = append(warnings, fmt.Sprintf("selected capability root `%s` %s", r.ID, v.reason))
		}
	}
	return ready, warnings
}

func inspect(set *environment.Set, id string) (ready bool, reason string) {
	e, ok := set.Get(id)
	if !ok {
		return false, fmt.Sprintf("references unavailable environment `%s`", id)
	}
	state, c, err := e.Peek()
	switch state {
	case environment.Failed:
		return false, fmt.Sprintf("references environment `%s`: %v", id, err)
	case environment.Ready:
		if c != nil {
			now, _ := c.State()
			return now == client.Connected, ""
		}
		return true, "" // it is local
	}
	return false, ""
}
