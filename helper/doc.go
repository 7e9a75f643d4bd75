// Package helper is the door to what the agent's own executable becomes when it
// is started with a hidden first argument: [Dispatch]. What is done behind it lies in
// packages of their own:
//
//   - helper/confine, sandbox-init: confines a command and sees it out; and
//     helper/supervise, which does system calls for that command
//   - helper/files, fs-helper: serves file operations under a policy
//   - helper/probe, sandbox-probe: tries one layer, to find out whether this
//     host can enforce it
//   - procs, process-guard: outlives an agent to kill what that leaves behind
//
// Linux only.
package helper
