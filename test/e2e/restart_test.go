package e2e

import (
	"errors"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/test/rig"
)

// TestAgentReplaced: who hears that the agent of an environment was replaced asks the registry, and
// has a client of the new one if that is so.
func TestAgentReplaced(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	first := s.Serve(t, "ci-0")
	connect := func(to environment.Transport) (client.Config, error) {
		noise := to.(environment.Noise)
		return remote.Registry(noise.RegistryURL, noise.EnvironmentID, noise.AuthToken)
	}
	set, err := environment.New(environment.Config{Connect: connect}, environment.Plan{Default: "box", Entries: []environment.Entry{{
		ID: "box", Transport: environment.Noise{RegistryURL: s.URL(), EnvironmentID: "ci-0", AuthToken: s.Harness},
	}}})
	rig.Must(t, err)
	defer set.Close()
	box, _ := set.Get("box")
	old, err := box.Client(rig.Context(t))
	rig.Must(t, err)
	rig.Must(t, box.Refresh(rig.Context(t)))
	if c, err := box.Client(rig.Context(t)); c != old || err != nil {
		t.Fatalf("the client has changed with the same agent: %v", err)
	}
	first.Terminate(t)
	s.Serve(t, "ci-0")
	// The agent is connected before the registry has noted that it is online.
	eventually(t, patience, func() error { return box.Refresh(rig.Context(t)) })
	if !errors.Is(old.Err(), client.ErrReplaced) && !strings.Contains(old.Err().Error(), "another executor than before") {
		t.Errorf("the old client ends with %v", old.Err())
	}
	c, err := box.Client(rig.Context(t))
	rig.Must(t, err)
	rig.Is(t, answer(t, c, "", "echo", "new"), "new\n", "the new agent")
}
