package main

import (
	"context"
	"errors"
	"os/signal"
	"syscall"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/relay/wire"
)

// environmentsFlags name a registry.
type environmentsFlags struct {
	Context           *string `env:"AGENT_CONTEXT" placeholder:"NAME" complete:"contexts" help:"Context that names the registry and the key. Default: the current one."`
	Registry          string  `env:"AGENT_REGISTRY" placeholder:"URL" help:"Base URL of the registry. It needs a token in CODEX_API_KEY or AGENT_REGISTRY_TOKEN."`
	RegistryTokenFile string  `env:"AGENT_REGISTRY_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the token for --registry, instead of the variables."`
	TLSCA             string  `env:"AGENT_TLS_CA" name:"tls-ca" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM) to trust for the registry. Default: those of this system and of SSL_CERT_FILE."`
	listFlags
	configFlags
}

func (*environmentsFlags) Help() string {
	return `Lists the environments that your key can use and that were registered within the last 30 days. The list shows since when each environment is online, and who its executor is. The registry updates the list at most once a second.

Examples:

    agent environments
    agent environments --context prod -o json
    for e in $(agent environments -q); do agent exec --environment-id $e -- uptime; done`
}

func (f *environmentsFlags) run(sys program.System) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, askRegistry, timeoutError(askRegistry))
	defer cancel()
	at := target.Flags{Context: f.Context, Config: f.Config, Registry: f.Registry, RegistryTokenFile: f.RegistryTokenFile, TLSFlags: target.TLSFlags{TLSCA: f.TLSCA}}
	environments, err := at.Environments(ctx, sys)
	if err != nil {
		program.Complain(sys.Stderr, err)
		if errors.Is(err, target.ErrNoRegistry) {
			return program.ExitUsage
		}
		return program.ExitFailure
	}
	return sys.Exit(printList(sys.Stdout, f.listFlags, environments, func(e wire.Environment) string { return e.ID },
		"ENVIRONMENT\tSTATE\tSINCE\tEXECUTOR", func(e wire.Environment) []string {
			state, since := "offline", ""
			if e.Online {
				state, since = "online", sessions.Age(time.Since(e.Since))
			}
			return []string{e.ID, state, since, e.Executor}
		}))
}
