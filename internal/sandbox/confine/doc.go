// Package confine runs a command under a policy. Linux only.
//
// In the agent, a [Door] chooses the layers that enforce the policy, and takes
// from the host what they need. Then the agent starts its own executable again,
// as sandbox-init, and describes the command to it. This init confines the
// command, starts it, passes signals on, and ends with the command's exit code.
//
//	agent ── clone(new namespaces) ──► sandbox-init ── fork from T1 ──► command
//	  │                                  │  ▲
//	  ├── fd 3: sealed memfd ───────────►┘  │      what to run, and how confined
//	  └── fd 4: the leash ◄────────────────►┘      "I take signals" / "end it"
//
// [Command.Prepare] makes what the agent needs to start the init, and [Main]
// runs in the init. Init maps its ids, builds the view of the file system, and
// gives up its capabilities. Then it puts Landlock and a system call filter on
// one of its threads only, T1, which forks the command and ends. The command
// inherits both. No thread that remains in init is in the command's Landlock
// domain. So the command can neither signal nor trace its init, and init can
// still signal the command. A command with [Limits] is not forked: it takes the
// place of a second init (apart.go).
//
// A sandbox-init has one of several roles, which decideRole chooses from the
// arguments and the description. An init starts another one to become a command
// with limits (apart.go), to supervise a command (inner.go), or to bind one
// name of the file system for its command (supervise). The agent also starts an
// init that only writes one line: the reason why nothing is run (refuse.go).
//
// With the network enabled init also does the command's connect(2) and bind(2),
// on copies of the addresses: see package supervise.
//
// If a step fails, init ends with code 101 and one line on stderr that starts
// with "sandbox: ", and the command is not run (sandbox.md 9.2).
//
// When the agent ends, its end of the leash is closed. Then init ends, and so
// does everything that it confined. With a PID namespace the kernel kills all
// processes in it when init ends. Without one they become children of init,
// their subreaper, which kills them before it ends.
package confine

// Arg is the first argument that makes the agent's executable an init: it calls
// [Main].
const Arg = "sandbox-init"
