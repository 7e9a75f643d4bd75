package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/settings"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/cli"
	"github.com/execagent/execagent/cmd/internal/program"
)

// completeTime bounds how long a user who has pressed Tab waits.
const completeTime = 2 * time.Second

// completeFlags say which words a completion script requests.
type completeFlags struct {
	Kind string   `arg:"" help:"What the words are: contexts, environments or sessions."`
	Line []string `arg:"" bytes:"" optional:"" passthrough:"" help:"Words of the line so far, without the program."`
}

// kinds has a function for each kind of words that scripts request, see [cli.App.Completion]. at
// has the flags of the line so far that name the agent.
var kinds = map[string]func(ctx context.Context, sys program.System, at *target.Flags) ([]string, error){
	"contexts": func(_ context.Context, _ program.System, at *target.Flags) ([]string, error) {
		return at.Contexts(), nil
	},
	"sessions": func(ctx context.Context, sys program.System, at *target.Flags) ([]string, error) {
		c, err := at.Connect(ctx, sys)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		listed, err := c.Sessions(ctx)
		names := make([]string, 0, len(listed))
		for _, s := range listed {
			names = append(names, s.Name)
		}
		return names, err
	},
	"environments": func(ctx context.Context, sys program.System, at *target.Flags) ([]string, error) {
		list, err := at.Environments(ctx, sys)
		ids := make([]string, 0, len(list))
		for _, e := range list {
			ids = append(ids, e.ID)
		}
		return ids, err
	},
}

// run prints the words, a line each. It prints no errors, because the user is in the middle of a
// line.
func (f *completeFlags) run(sys program.System) int {
	ask := kinds[f.Kind]
	if ask == nil {
		return program.ExitOK
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	quiet, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return program.ExitOK
	}
	defer quiet.Close()
	loud := sys.Stdout
	sys.Stdout, sys.Stderr = quiet, quiet
	done := make(chan []string, 1)
	// A request that ignores ctx runs until the program ends.
	go func() {
		words, _ := ask(ctx, sys, atLine(f.Line))
		done <- words
	}()
	select {
	case words := <-done:
		// An error does not matter, because the script is gone then.
		_, _ = fmt.Fprint(loud, strings.Join(append(words, ""), "\n"))
	case <-ctx.Done():
	}
	return program.ExitOK
}

// atLine returns the flags of an incomplete line that name the agent, with files and variables.
func atLine(line []string) *target.Flags {
	if len(line) > 0 && line[0] == "--" {
		line = line[1:]
	}
	if end := slices.Index(line, "--"); end >= 0 {
		line = line[:end]
	}
	at := new(target.Flags)
	fields := cli.Of(at)
	var words []string
	for i, word := range line {
		switch last := len(words) - 1; {
		case word == "": // it has no meaning
		case i > 0 && last >= 0 && (word == "=" || line[i-1] == "="): // bash splits --flag=value into three words
			words[last] += word
		default:
			words = append(words, word)
		}
	}
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		words = words[1:] // the command
	}
	given, _ := fields.Given(words)
	if command := first(line); command == "" || command[0] == '-' || settings.Serves(command) {
		settings.Line(given).Prefer(false)
	} else if values, err := grammar.Values(line, given); err == nil { // otherwise the command itself reports the error
		fields.Take(values)
	}
	_ = fields.Settle()
	for name, value := range given {
		if f := fields.Find("--" + name); !f.Boolean() {
			_ = f.Set(value)
		}
	}
	return at
}
