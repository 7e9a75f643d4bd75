// Package sandbox says, as plain values, what a command or a file request may touch. It enforces
// nothing itself: package helper runs commands under a [Profile], package agent does so for its
// clients.
//
//	policy, err := sandbox.WorkspaceWrite("/srv/w").Compile()
//	policy.Access("/srv/w/main.go") // write
//
// A [Profile] is a request: each [Entry] gives a [Place] an [Access], and [Network] says whether
// there is a network. The zero value allows nothing. [Profile.Compile] turns a profile into a
// [Policy]: paths with an access, of which the longest prefix of a path decides. Some names at the
// top of a workspace, such as .git, stay read-only ([ProtectedNames]).
//
// A [Host] says which layers a machine can enforce. [Policy.Backend] chooses those that express the
// policy exactly, or fails with an [UnenforceableError]: it never chooses layers that would enforce
// less. An [Operator] can require namespaces, and [Limits] bound the resources of a command.
// [Policy.ProcessRuleset] and its siblings turn a policy into a [Ruleset], the list of what
// Landlock allows.
//
// # Limits
//
// The package looks at no file and makes no call of the kernel, so it builds everywhere; paths are
// those of Linux. Profiles and their parts are bounded ([MaxEntries], [MaxPath]).
// Nothing here locks: several goroutines may read a value at once.
package sandbox
