// Package seccomp makes deploy/seccomp-agent.json, a profile for containers in which an agent may
// use user namespaces. It has the form that Docker, podman, containerd and CRI-O all read: that of
// the OCI runtime specification, without the conditions that only some of them know.
//
// It lets through what is known and not refused below. Calls are known by the constants of
// golang.org/x/sys/unix, for both architectures of the agent and their 32-bit programs. Newer ones
// fail with ENOSYS, so that programs fall back to older ones.
package seccomp
