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
// only, T1, which forks the command and ends. The command inherits both. No
// thread of the init that is left has the command's Landlock domain, so the command
// can neither signal nor trace the init, while the init can send it signals. A
// command with [Limits] takes the place of a second init instead of T1.
//
// The init starts itself again, with other arguments, for three jobs: to become such
// a command (apart.go), to bind one name of the file system for a command
// (supervise), and to say one line and end (refuse.go).
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
