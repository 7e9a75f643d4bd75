// Package seccomp makes deploy/seccomp-agent.json, a profile for containers in which an agent may
// use user namespaces. Its form is that of the OCI runtime specification, without the conditions
// that only some engines know, so Docker, podman, containerd and CRI-O all read it.
//
// It allows all known calls that are not refused below. The known calls are the constants of
// golang.org/x/sys/unix, for both architectures of the agent and their 32-bit programs. Newer calls
// fail with ENOSYS, so that programs fall back to older calls.
package seccomp
