// Package files does file operations under a policy. A helper process that is confined to the
// policy does them. If the policy lets everything be read, this process does the reads. Linux only.
//
//	agent: Pool.Files(ctx, policy) ── one packet a request ──► fs-helper: fsops.View
//	                               ◄── an answer, or a descriptor ──
//
// A [Pool] keeps one helper process for each policy in use, as long as the paths
// of the policy lead to the same objects. The picture above type entry shows
// the states of a policy, from its first request to the end of its helper. The
// helper ([Main]) opens files and passes their descriptors to the agent; it
// reads their contents only to copy them. The table at the top of wire.go lists
// the messages of both sides.
package files

// Arg is the first argument that makes the agent's executable a file helper: it calls [Main].
const Arg = "fs-helper"
