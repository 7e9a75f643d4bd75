// Command agent executes processes, file operations and HTTP requests for clients that speak the
// protocol of codex exec-server, and is a client of such servers. See agent --help. Linux only.
//
// A command is a file: agent cp is cp.go, with its flags (cpFlags), its help, Check, which finds flags
// that contradict each other, and run, which returns the exit code. Three commands need more files:
// exec-server (serve.go, serve_*.go), exec (exec.go, exec_*.go) and context (context.go).
//
// The list of all commands is commandLine in command_line.go, which also reads a line. Flags that
// several commands share are embedded structs: agent_flags.go (which agent), serve_flags.go (a listener),
// list_flags.go (how to print a list), host_flags.go (the sandbox of this host).
//
// bridge.go passes connections on, for connect and forward. until_signal.go and exit.go end a
// command, shares.go divides memory, paths.go is for the commands about files, and habits.go has
// the words of other programs.
//
// The folder internal has the packages that do the work:
//   - target: the agent that a command works on
//   - console: the user's terminal
//   - local: a command on this machine
//   - transfer, sessions, forwarding, doctor: the work of the commands about files, sessions,
//     forwarding and diagnosis
//   - executor: remote mode
//   - health: health probes
//   - policyfile: the policies of the operator
//   - settings: the places where options are set
package main
