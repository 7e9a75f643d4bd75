// Package helper is what the agent's own executable is when it is started with
// a hidden first argument: [InitArg] confines a command and sees it out,
// [FSArg] serves file operations under a policy. Only Linux has it.
//
// # A confined command
//
//	agent ── clone(new namespaces) ──► sandbox-init ── fork from T1 ──► command
//	  │                                  │  ▲
//	  ├── fd 3: sealed memfd ───────────►┘  │      what to run, and how confined
//	  └── fd 4: the leash ◄────────────────►┘      "I take signals" / "end it"
//
// [Command.Prepare] makes what the agent needs to start it, [InitMain] is what
// runs there. It maps its ids, builds the view of the file system, gives up its
// capabilities, and then puts Landlock and a system call filter on one thread
// only, T1, which forks the command and ends. The command inherits both, and
// no thread that is left shares its Landlock domain, so it can neither signal
// nor trace the init that watches it, while that forwards signals to it. A
// command with [Limits] takes the place of a second init instead of T1.
//
// With the network enabled init also does the command's connect(2) and bind(2), on
// copies of the addresses: see notifier.
//
// Any step that fails ends it with code 101 and one line on stderr that starts
// with "sandbox: "; the command does not run then (sandbox.md 9.2).
//
// The leash ends with the agent. What is confined then dies: at once with its
// PID namespace, else by the init, which is the subreaper of all of it.
//
// # Confined file requests
//
//	agent: Pool.Files(ctx, policy) ── one packet a request ──► fs-helper: fsops.View
//	                               ◄── an answer, or a descriptor ──
//
// A [Pool] keeps one such process for each policy in use, as long as the paths
// of the policy lead where they did. The helper opens files and hands their
// descriptors over; but for copies it never sees what is in them. The table at the top of
// wire.go says who sends what.
package helper

// The first arguments that make the agent's executable one of the helpers.
const (
	// InitArg calls [InitMain].
	InitArg = "sandbox-init"
	// FSArg calls FSMain.
	FSArg = "fs-helper"
)
