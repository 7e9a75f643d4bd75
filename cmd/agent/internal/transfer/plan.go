// Package transfer copies files and trees between this machine and an agent: it says what a
// command line means, has both ends of package filecopy do it, and shows how far they are.
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

// Plan is what a command line asks for: sources and a target, of which one side is here and the
// other at the agent. There the paths have no colon any more.
type Plan struct {
	Sources []string
	Target  string
	Up      bool // to the agent
}

// NewPlan reads a command line of agent cp.
func NewPlan(args []string) (*Plan, error) {
	if len(args) < 2 {
		return nil, errors.New("what is to be copied, and where to? cp takes at least two paths, those at the agent as :PATH")
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
			return nil, errors.New("- is a whole tar archive: it is copied alone")
		}
	}
	if p.Target == "" {
		return nil, errors.New("a path is empty")
	}
	target, there := strings.CutPrefix(p.Target, ":")
	p.Target, p.Up = target, there
	switch {
	case remote > 0 && remote < len(p.Sources):
		return nil, errors.New("all sources have to be on one side: here, or at the agent as :PATH")
	case remote > 0 && there:
		return nil, errors.New("both sides are at the agent: agent exec -- cp copies there")
	case remote == 0 && !there:
		return nil, fmt.Errorf("both sides are here: a path at the agent is written :PATH, as in :%s", strings.TrimPrefix(args[len(args)-1], archive))
	}
	return p, nil
}

// Named reads paths as scp has them, CONTEXT:PATH, and returns the context with the paths as agent
// cp has them; "" if they are none, or of several. isContext tells what is one.
func Named(args []string, isContext func(name, path string) bool) (context string, paths []string) {
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

// at makes a path of the agent absolute, which is relative to a directory there. It keeps what the
// end of the path says: /. stands for what is in a directory, and / for a directory.
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
