package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRegistryMistakes: what users get wrong with a registry that is there, with the exact text and
// exit code. The others are in cmd/agent/testdata/mistakes.txt.
func TestRegistryMistakes(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	const at, harness, executor = "--registry $URL --environment-id ", "$HARNESS", "$EXECUTOR"
	place := strings.NewReplacer("$URL", s.URL(), "$ADDRESS", s.Address, "$HARNESS", s.Harness, "$EXECUTOR", s.Executor)
	for _, tt := range []struct {
		line, key string
		code      int
		want      string
	}{
		{"exec " + at + "ci-1 true", harness, 0, ""},
		{"exec " + at + "ci-2 --wait 0 true", harness, 125, "agent: environment ci-2: no executor is connected\n"},
		{"health " + at + "ci-2", harness, 1, "agent: environment ci-2: no executor is connected\n"},
		{"exec " + at + "prod-1 true", harness, 125, "agent: environment prod-1: asking the registry for the executor: registry answered 403 forbidden: the credential is not for this environment\n"},
		{"exec " + at + "ci-1 true", executor, 125, "agent: environment ci-1: asking the registry for the executor: registry answered 403 forbidden: the credential is that of an executor, and this takes that of a harness\n"},
		{"exec " + at + "ci-1 true", "wrong", 125, "agent: environment ci-1: asking the registry for the executor: registry answered 401 unauthorized: the credential is missing or not valid\n"},
		{"connect " + at + "prod-1", harness, 1, "agent: environment prod-1: asking the registry for the executor: registry answered 403 forbidden: the credential is not for this environment\n"},
		{"exec --url ws://$ADDRESS true", harness, 125, "agent: ws://$ADDRESS: no agent, but something else answers there (a registry is named by --registry)\n"},
		{"exec --registry $URL/v2 --environment-id ci-1 true", harness, 125, "agent: environment ci-1: asking the registry for the executor: registry answered 404 not_found: no such path\n"},
		{"--remote $URL --environment-id prod-1", executor, 1, "agent: registering the executor: registry answered 403 forbidden: the credential is not for this environment\n"},
		{"--remote $URL --environment-id ci-2", harness, 1, "agent: registering the executor: registry answered 403 forbidden: the credential is that of a harness, and this takes that of an executor\n"},
		{"--remote $URL --environment-id ci-2", "wrong", 1, "agent: registering the executor: registry answered 401 unauthorized: the credential is missing or not valid\n"},
	} {
		t.Run(strings.ReplaceAll(tt.line, "/", "|")+" "+tt.key, func(t *testing.T) {
			t.Parallel()
			cmd := rig.Command(t, rig.Agent(t), strings.Fields(place.Replace(tt.line))...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "AGENT_LOG_LEVEL=warn", "CODEX_API_KEY=" + place.Replace(tt.key)}
			rig.Is(t, says(t, cmd), ending(place.Replace(tt.want), tt.code), "it says")
		})
	}
}
