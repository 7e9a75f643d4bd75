// Package resolve looks up the paths of a policy on this host, and makes a
// policy of the canonical paths of the objects found.
//
// [Policy] follows every path name by name, on descriptors. Its result is a
// [Resolved]: a policy of canonical paths, the names that need a placeholder, and
// the objects that must not change ([Resolved.Fresh]). It also adds rules that
// depend on the files: for the targets of .git pointer files, for names that
// would make a writable root a bare repository, for other mounts of the agent's
// own files. [Served] remembers the places that commands could write, and refuses
// a later policy whose paths these commands could have redirected.
//
// [OpenBeneath] opens a canonical path without following links, and [FileKind] returns the kind of
// what was opened.
//
// Linux only. The methods of a Resolved and of a Served may run at once. So may
// the funcs, which remember nothing from one call to the next.
package resolve
