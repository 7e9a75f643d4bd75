// Package files does file operations under a policy: in a helper process that is confined to the
// policy, or, where the policy lets everything be read, in this one. Linux only.
//
//	agent: Pool.Files(ctx, policy) ── one packet a request ──► fs-helper: fsops.View
//	                               ◄── an answer, or a descriptor ──
//
// A [Pool] keeps one such process for each policy in use, as long as the paths
// of the policy lead where they did; what happens to one policy from its first
// request to the end of its helper is drawn over type entry. The helper
// ([Main]) opens files and hands their descriptors over; but for copies it
// never sees what is in them. The table at the top of wire.go says who sends
// what.
package files

// Arg is the first argument that makes the agent's executable a file helper: it calls [Main].
const Arg = "fs-helper"
