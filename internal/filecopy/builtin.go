// Package builtin has the tools of our own binary that clients start by their name,
// as processes of their session (rpc.md 8.3). Linux only.
package filecopy

import (
	"os"
)

// Arg is the first argument that makes this program a tool: it calls [Main].
const ToolArg = "builtin-tool"

// ToolRetain is how much output of a tool is kept at least, in bytes: all that can be on
// its way when a connection is lost.
const ToolRetain = 2 * Window

// tools are what there is, by the names that clients use.
var tools = map[string]func(args []string) (code int){
	Tool: func(args []string) int { return Main(args, os.Stdin, os.Stdout, os.Stderr) },
}

// IsTool tells whether there is a tool of that name.
func IsTool(name string) bool { return tools[name] != nil }

// ToolCommand is what to execute for a tool with its arguments, and what that sees as
// argv[0].
func ToolCommand(argv []string) (command []string, arg0 *string) {
	return append([]string{"/proc/self/exe", ToolArg}, argv...), new("agent")
}

// ToolMain is the main function of a tool; the arguments after Arg say which.
func ToolMain() (code int) {
	if len(os.Args) < 3 || !IsTool(os.Args[2]) {
		return 2
	}
	return tools[os.Args[2]](os.Args[3:])
}
