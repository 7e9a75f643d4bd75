// Package confine runs a command under a policy. A [Door] decides what that
// takes, and takes it; then the agent describes the command to its own
// executable, which it starts anew as sandbox-init, and that confines the
// command and sees it out. Linux only.
//
//	agent ── clone(new namespaces) ──► sandbox-init ── fork from T1 ──► command
//	  │                                  │  ▲
//	  ├── fd 3: sealed memfd ───────────►┘  │      what to run, and how confined
//	  └── fd 4: the leash ◄────────────────►┘      "I take signals" / "end it"
//
// [Command.Prepare] makes what the agent needs to start it, [Main] is what
// runs there. It maps its ids, builds the view of the file system, gives up its
// capabilities, and then puts Landlock and a system call filter on one thread
// only, T1, which forks the command and ends. The command inherits both, and
// no thread that is left shares its Landlock domain, so it can neither signal
// nor trace the init that watches it, while that forwards signals to it. A
// command with [Limits] takes the place of a second init instead of T1.
//
// With the network enabled init also does the command's connect(2) and bind(2), on
// copies of the addresses: see package supervise.
//
// Any step that fails ends it with code 101 and one line on stderr that starts
// with "sandbox: "; the command does not run then (sandbox.md 9.2).
//
// The leash ends with the agent. What is confined then dies: at once with its
// PID namespace, else by the init, which is the subreaper of all of it.
package confine

// Arg is the first argument that makes the agent's executable an init: it calls [Main].
const Arg = "sandbox-init"
