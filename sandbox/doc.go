// Package sandbox says, as plain values, what a process or a file request may
// touch. It looks at no file and makes no call of the kernel, and builds
// everywhere.
//
// A [Profile] is what a client asks for. [Profile.Compile] turns it into a
// [Policy]: paths with an access, the longest prefix decides. [Policy.Backend]
// chooses the layers that can express the policy exactly on a [Host], or fails;
// it never chooses layers that would enforce less than the policy says.
// [Policy.ProcessRuleset] and its siblings turn the policy into a [Ruleset],
// which tells Landlock what to allow.
//
// The packages below keep a policy, and know nothing of requests either: resolve
// looks its paths up on this host, view makes the root directory that a confined
// process sees, hold keeps missing names from coming into being, enforce puts
// Landlock and the filters into force.
//
// Nothing here locks. A value may be read by several goroutines at once.
package sandbox
