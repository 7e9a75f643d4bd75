// Package helper turns a process of the agent's own executable into a helper
// when it was started with a hidden first argument: [Dispatch]. What the
// helpers do lies in packages of their own. These are the arguments:
//
//   - sandbox-init, helper/confine: confines a command and runs it. It does
//     some system calls for the command: helper/supervise.
//   - fs-helper, helper/files: serves file operations under a policy.
//   - sandbox-probe, helper/probe: tries one layer, to find out whether this host
//     can enforce it.
//   - builtin-tool, helper/builtin: one of the tools that clients start by name.
//   - --codex-run-as-apply-patch, or being called apply_patch or applypatch,
//     package applypatch: applies a patch to files, for a model.
//   - process-guard, procs: outlives an agent to kill the processes that the agent
//     leaves behind.
//
// Linux only.
package helper
