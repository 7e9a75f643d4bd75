// Package helper lets a program confine commands. To confine a command, the program starts itself
// once more with a hidden first argument. So a program with this package, or with package agent,
// begins like this, and so does the TestMain of its tests:
//
//	func main() {
//		if code, ok := helper.Dispatch(os.Args); ok {
//			os.Exit(code)
//		}
//		...
//	}
//
// A [Sandbox] then runs commands, each under a [sandbox.Profile]:
//
//	box := helper.NewSandbox(helper.SandboxConfig{})
//	defer box.Close()
//	code, err := box.Run(profile, procs.Program{Argv: argv, Dir: dir, Env: env}, [3]*os.File{os.Stdin, os.Stdout, os.Stderr})
//
// [Sandbox.Run] waits for the command. To get its output as events, to write to it, or to kill it,
// start it with package procs: [Sandbox.Enter] chooses the layers, and [Confined.Stage] is the
// [procs.Spec.Stage] of the process.
//
// # Modes
//
// The hidden arguments, and what a process with each of them does:
//
//	sandbox-init     confines a command, starts it, and ends as it does
//	sandbox-probe    tries a layer, to find out whether this host can enforce it
//	fs-helper        serves file operations under a policy, for an agent
//	builtin-tool     is a tool of the agent that clients start by name
//	exec-hold        waits for permission, then becomes a command
//	process-guard    outlives an agent and kills the processes that the agent leaves behind
//	--codex-run-as-apply-patch, or the name apply_patch or applypatch
//	                 applies a patch to files, for a model
//
// # Limits
//
// Linux only. A profile that this host cannot enforce exactly is refused, and nothing runs; agent
// doctor shows what a host can enforce. The modes need a process in which nothing has happened yet.
// So call Dispatch first, and let package variables and init functions of the program open nothing.
package helper
