package confine

import (
	"errors"
	"strings"

	"github.com/execagent/execagent/procs"
)

// refusal is the second argument of an init that is only to say why.
const refusal = "refuse"

// refuse prepares what takes the place of a command that cannot be confined
// as asked: it says so in one line on stderr that starts with "sandbox: ", and
// ends with code 101 (sandbox.md 9.2). Nothing of the command is run.
func refuse(argv0 string, why error) *procs.Stage {
	text := strings.ReplaceAll(why.Error(), "\x00", " ")
	return &procs.Stage{Path: "/proc/self/exe", Argv: []string{argv0, Arg, refusal, text}}
}

// refusalIn is why this init is to run nothing, nil if it is to run something.
func refusalIn(args []string) error {
	if len(args) == 4 && args[2] == refusal {
		return errors.New(strings.TrimPrefix(args[3], "sandbox: "))
	}
	return nil
}
