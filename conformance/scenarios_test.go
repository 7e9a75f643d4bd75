package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/conformance/internal/scenario"
	"github.com/execagent/execagent/test/rig"
)

// TestScenarios has each scenario of the clients with the Go client, over each way to an agent.
func TestScenarios(t *testing.T) {
	all := rig.Value(scenario.Load(os.DirFS("../sdk/scenarios")))
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
		for _, s := range all {
			if !s.Runs(way) {
				continue
			}
			t.Run(way+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
				rig.Must(t, os.Mkdir(filepath.Join(dir, "here"), 0o755), os.Mkdir(filepath.Join(dir, "there"), 0o755))
				web, err := scenario.Serve()
				rig.Must(t, err)
				defer web.Close()
				err = scenario.Run(t.Context(), s, config(), filepath.Join(dir, "there"), filepath.Join(dir, "here"), web)
				if errors.Is(err, scenario.ErrLacks) {
					t.Skip(err)
				}
				rig.Check(t, err)
			})
		}
	}
}
