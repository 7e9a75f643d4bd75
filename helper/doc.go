// Package helper is what the agent's own executable is when it is started with
// a hidden first argument. Each way lies in a package of its own:
//
//   - helper/confine, sandbox-init: confines a command and sees it out; and helper/supervise, which does
//     system calls for that command
//   - helper/files, fs-helper: serves file operations under a policy
//   - helper/probe, sandbox-probe: tries one layer, to find out whether this host can enforce it
package helper
