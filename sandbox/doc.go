// Package sandbox says what a process or a file request may touch, and makes
// the kernel hold it to that.
//
// A [Profile] is what a client asks for. [Profile.Compile] turns it into a
// [Policy], a plain value: paths with an access, the longest prefix decides.
// [Policy.Resolve] looks the paths up on this host and gives the policy of the
// objects that are really there. [Policy.Backend] chooses the layers that can
// express the policy exactly on a [Host], or fails: nothing here ever enforces
// less than the policy says. [Served] remembers what commands could write, for
// the policies of later ones.
package sandbox
