package commandline

import (
	"os"

	"github.com/alecthomas/kong"
)

// NoEmptyPaths takes variables that are empty out of this process's environment if they are for
// paths: no file has the empty name, and the parser would make the working folder of it.
func NoEmptyPaths(node *kong.Node) {
	for _, flag := range node.Flags {
		if flag.Tag.Type != "path" {
			continue
		}
		for _, name := range flag.Envs {
			if text, set := os.LookupEnv(name); set && text == "" {
				_ = os.Unsetenv(name) // fails for a name with = or NUL
			}
		}
	}
	for _, child := range node.Children {
		NoEmptyPaths(child)
	}
}
