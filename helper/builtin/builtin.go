// Package builtin has the tools of our own binary that clients start by their name,
// as processes of their session (rpc.md 8.3). Linux only.
package builtin

import (
	"os"

	"github.com/execagent/execagent/internal/filecopy"
)

// Arg is the first argument that makes this program a tool: it calls [Main].
const Arg = "builtin-tool"

// Retain is how much output of a tool is kept at least, in bytes: all that can be on
// its way when a connection is lost.
const Retain = 2 * filecopy.Window

// tools are what there is, by the names that clients use.
var tools = map[string]func(args []string) (code int){
	filecopy.Tool: func(args []string) int { return filecopy.Main(args, os.Stdin, os.Stdout, os.Stderr) },
}

// Known tells whether there is a tool of that name.
func Known(name string) bool { return tools[name] != nil }

// Command is what to execute for a tool with its arguments, and what that sees as
// argv[0].
func Command(argv []string) (command []string, arg0 *string) {
	return append([]string{"/proc/self/exe", Arg}, argv...), new("agent")
}

// Main is the main function of a tool; the arguments after Arg say which.
func Main() (code int) {
	if len(os.Args) < 3 || !Known(os.Args[2]) {
		return 2
	}
	return tools[os.Args[2]](os.Args[3:])
}
