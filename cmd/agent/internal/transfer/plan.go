package transfer

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// archive is the word for a tar archive on standard input or output.
const archive = "-"

// Plan is a copy that a command line requests: sources and a target, one side on this machine and
// the other at the agent. The paths at the agent have no colon any more.
type Plan struct {
	Sources []string
	Target  string
	Up      bool // to the agent
}

// NewPlan reads a command line of agent cp.
func NewPlan(args []string) (*Plan, error) {
	if len(args) < 2 {
		return nil, errors.New("copy what, and where? give at least two paths; write those on the agent as :PATH")
	}
	p := &Plan{Sources: append([]string(nil), args[:len(args)-1]...), Target: args[len(args)-1]}
	remote := 0
	for i, source := range p.Sources {
		if source == "" {
			return nil, errors.New("a path is empty")
		}
		if name, ok := strings.CutPrefix(source, ":"); ok {
			p.Sources[i] = name
			remote++
		}
		if source == archive && len(p.Sources) > 1 {
			return nil, errors.New("- is a whole tar archive, so it must be the only source")
		}
	}
	if p.Target == "" {
		return nil, errors.New("a path is empty")
	}
	target, there := strings.CutPrefix(p.Target, ":")
	p.Target, p.Up = target, there
	switch {
	case remote > 0 && remote < len(p.Sources):
		return nil, errors.New("all sources must be on the same side: here, or on the agent as :PATH")
	case remote > 0 && there:
		return nil, errors.New("both sides are on the agent: use agent exec -- cp")
	case remote == 0 && !there:
		return nil, fmt.Errorf("both sides are here: write a path on the agent as :PATH, as in :%s", strings.TrimPrefix(args[len(args)-1], archive))
	}
	return p, nil
}

// SCPPaths reads paths in the form of scp, CONTEXT:PATH. It returns the context, and the paths in
// the form of agent cp. context is "" if no path has a context, or if the contexts differ.
// isContext reports whether a name is the name of a context.
func SCPPaths(args []string, isContext func(name, path string) bool) (context string, paths []string) {
	for _, arg := range args {
		name, rest, ok := strings.Cut(arg, ":")
		if _, err := os.Lstat(arg); !ok || err == nil || !isContext(name, rest) {
			paths = append(paths, arg)
			continue
		}
		if context != "" && context != name {
			return "", nil
		}
		context, paths = name, append(paths, ":"+rest)
	}
	return context, paths
}

// at makes a path of the agent absolute; relative paths start at dir. It keeps the meaning of the
// end of the path: /. is the content of a directory, and / a directory.
func at(dir, name string) string {
	if !strings.HasPrefix(name, "/") {
		if name == "" {
			name = "."
		}
		name = strings.TrimSuffix(dir, "/") + "/" + name
	}
	clean := path.Clean(name)
	switch {
	case clean == "/":
	case strings.HasSuffix(name, "/."), strings.HasSuffix(name, "/.."):
		clean += "/."
	case strings.HasSuffix(name, "/"):
		clean += "/"
	}
	return clean
}
