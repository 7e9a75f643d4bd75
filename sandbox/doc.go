// Package sandbox says, as plain values, what a process or a file request may
// touch. It looks at no file and makes no call of the kernel, and builds
// everywhere.
//
// A [Profile] is what a client asks for. [Profile.Compile] turns it into a
// [Policy]: paths with an access, the longest prefix decides. [Policy.Backend]
// chooses the layers that can express the policy exactly on a [Host], or fails;
// it never chooses layers that would enforce less than the policy says. A
// [Ruleset] is what Landlock is to allow for it.
//
// How a policy is kept lies in the packages below, which know nothing of
// requests either: resolve looks its paths up on this host, view makes the root
// directory that shows what it says, hold keeps missing names from coming into
// being, enforce puts Landlock and the filters into force.
package sandbox
