// Package resolve looks the paths of a policy up on this host, and gives the
// policy of the objects that are really there.
//
// [Policy] follows every path name by name, on descriptors. What it finds is a
// [Resolved]: a policy of canonical paths, the names that need a placeholder, and
// what has to stay as it is ([Resolved.Fresh]). On the way it adds rules that
// only a look at the files gives: for what .git pointer files name, for what
// would make a writable root a bare repository, for other mounts of what is
// private. [Served] remembers what commands could write, and refuses a later
// policy whose paths they could have redirected.
//
// Linux only. The methods of a Resolved and of a Served may run at once, and so
// may the funcs, which keep nothing.
package resolve
