package e2e

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/test/rig"
)

// TestAgentRestarted: when an agent was killed and another one is in its place, everything of the
// old session fails, once, with an error that says why, and the environment's next client works.
func TestAgentRestarted(t *testing.T) {
	t.Parallel()
	first := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
	second := startAgent(t, "none", "--listen", "ws://127.0.0.1:0")
	proxy := rig.NewProxy(t, strings.TrimPrefix(first.line(t), "ws://"), strings.TrimPrefix(second.line(t), "ws://"))
	home := t.TempDir()
	file := "include_local = false\n[[environments]]\nid = \"box\"\nurl = \"ws://" + proxy.Address() + "\"\n"
	rig.Must(t, os.WriteFile(home+"/"+environment.FileName, []byte(file), 0o600))
	plan, err := environment.Load(home, func(string) string { return "" })
	rig.Must(t, err)
	set, err := environment.New(environment.Config{Connect: func(to environment.Transport) (client.Config, error) {
		return client.URL(to.(environment.URL).URL), nil
	}}, plan)
	rig.Must(t, err)
	defer set.Close()
	box, _ := set.Get("box")
	c, err := box.Client(rig.Context(t))
	rig.Must(t, err)
	p, err := c.Spawn(rig.Context(t), client.Spec{Argv: []string{"sh", "-c", "echo begun; exec sleep 1000"}, Dir: "/"})
	rig.Must(t, err)
	begun := make([]byte, 6)
	rig.Must(t, rig.Err(io.ReadFull(p.Stdout(), begun)))
	rig.Is(t, proxy.At(), 0, "the connection is at agent")
	first.Kill(t)

	check := func(what string, err error) {
		t.Helper()
		lost, ok := errors.AsType[*client.DisconnectedError](err)
		if !ok || lost.Resume == nil || !strings.Contains(lost.Resume.Error(), "unknown session id") {
			t.Errorf("%s gives %v", what, err)
		}
	}
	_, err = p.Wait(rig.Context(t))
	check("Wait", err)
	_, err = c.Run(rig.Context(t), client.Spec{Argv: []string{"true"}}, nil)
	check("Run", err)
	check("Err", c.Err())
	rig.Is(t, client.Retryable(err), true, "%v is to be tried again", err)
	c, err = box.Client(rig.Context(t))
	rig.Must(t, err)
	rig.Is(t, answer(t, c, "", "echo", "again"), "again\n", "the next client")
}

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
