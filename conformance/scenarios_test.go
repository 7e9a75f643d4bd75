package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/conformance/internal/scenario"
	"github.com/execagent/execagent/test/rig"
)

// TestScenarios has each scenario of the clients with the Go client, over each way to an agent.
func TestScenarios(t *testing.T) {
	all, unknown := rig.Value(scenario.Load(os.DirFS("../sdk/scenarios"))), rig.Value(scenario.Load(os.DirFS("testdata/unknown")))
	socket := filepath.Join(rig.Value(filepath.EvalSymlinks(t.TempDir())), "s")
	rig.Start(t, exec.Command(program, "--listen", "unix://"+socket)).Line(t)
	site := rig.NewSite(t)
	site.Serve(t, "ci-scenarios")
	for way, config := range map[string]func() client.Config{
		"ws":    func() client.Config { return client.URL(agentURL) },
		"unix":  func() client.Config { return client.URL("unix://" + socket) },
		"stdio": func() client.Config { return client.Command(program, "--listen", "stdio") },
		"relay": func() client.Config { return rig.Value(remote.Registry(site.URL(), "ci-scenarios", site.Harness)) },
	} {
		for _, s := range append(all, unknown...) {
			if !s.Runs(way) {
				continue
			}
			t.Run(way+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				here, there := rig.Value(filepath.EvalSymlinks(t.TempDir())), rig.Value(filepath.EvalSymlinks(t.TempDir()))
				web := rig.Listen(t, "tcp", "127.0.0.1:0", scenario.Answer)
				switch err := scenario.Run(t.Context(), s, config(), there, here, web.(*net.TCPAddr).Port); {
				case errors.Is(err, scenario.ErrLacks):
					t.Skip(err)
				case slices.Contains(unknown, s):
					rig.Is(t, err, scenario.ErrUnknown, "it ends with")
				default:
					rig.Check(t, err)
				}
			})
		}
	}
}
