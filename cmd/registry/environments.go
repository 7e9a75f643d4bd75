package main

import (
	"context"
	"io"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/registry/store"
)

// environmentsFlags say how to print the environments.
type environmentsFlags struct {
	listFlags
	storeFlags
}

func (*environmentsFlags) Help() string {
	return `Lists the environments whose executor has an open websocket to any process of the registry. A node is a process of the registry.`
}

func (f *environmentsFlags) run(sys system) error {
	return f.withExisting(sys, func(ctx context.Context, st *store.Store) error {
		environments, err := st.Environments(ctx)
		if err != nil {
			return err
		}
		return printEnvironments(sys.stdout, f.json(), environments)
	})
}

func printEnvironments(w io.Writer, asJSON bool, environments []store.Environment) error {
	return program.PrintList(w, asJSON, environments, "ENVIRONMENT\tSINCE\tPRINCIPAL\tREGISTRATION\tNODE", func(e store.Environment) []any {
		return []any{e.ID, e.Since.UTC().Format(time.RFC3339), e.Principal, e.RegistrationID, e.Node}
	})
}
