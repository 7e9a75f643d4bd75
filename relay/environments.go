package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/wire"
)

// maxListed is how many environments [Environments] accepts from a registry.
const maxListed = 100_000

// Environments asks a registry for the environments that a harness's key is for, sorted by
// their ids. It ignores the EnvironmentID of cfg. It checks the answer: the ids are valid,
// and the names of executors can be printed.
func Environments(ctx context.Context, cfg RegistryConfig) ([]Environment, error) {
	r, err := newRegistry(cfg, wire.PathEnvironments)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var all []Environment
	query, last := "", ""
	for {
		var response wire.EnvironmentsResponse
		if err := r.Call(ctx, query, nil, &response, nil); err != nil {
			return nil, fmt.Errorf("asking the registry for its environments: %w", err)
		}
		for _, e := range response.Environments {
			if !wire.ValidEnvironmentID(e.ID) || e.ID <= last {
				return nil, errors.New("registry's answer lists what is no environment id, or not in order")
			}
			last = e.ID
			e.Executor = api.Printable(e.Executor, "")
			all = append(all, e)
		}
		switch {
		case response.Next == "":
			return all, nil
		case response.Next != last || len(response.Environments) == 0:
			return nil, errors.New("next in the registry's answer is not its last environment")
		case len(all) > maxListed:
			return nil, fmt.Errorf("the registry has more than %d environments for this key", maxListed)
		}
		query = "?" + wire.QueryAfter + "=" + last
	}
}
