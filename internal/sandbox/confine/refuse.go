package confine

import (
	"errors"
	"strings"

	"github.com/execagent/execagent/procs"
)

// refusal is the argument after Arg for an init that runs nothing. The reason
// comes after it.
const refusal = "refuse"

// refuse makes a stage that runs nothing, for a command that cannot be confined
// as requested: an init that says why in one line on stderr that starts with
// "sandbox: ", and ends with code 101 (sandbox.md 9.2).
func refuse(argv0 string, why error) *procs.Stage {
	text := strings.ReplaceAll(why.Error(), "\x00", " ")
	return &procs.Stage{Path: "/proc/self/exe", Argv: []string{argv0, Arg, refusal, text}}
}

// refusalIn returns the reason if args are those of an init that runs nothing,
// and nil otherwise.
func refusalIn(args []string) error {
	if len(args) == 4 && args[2] == refusal {
		return errors.New(strings.TrimPrefix(args[3], "sandbox: "))
	}
	return nil
}
