// Package view makes the root directory that a confined process sees, in which
// every path has the access that the policy gives it.
//
// planView is pure: from a resolved policy and from the objects at its paths it
// makes a plan, the list of mounts, outermost first. [Enter] looks at these
// paths, searches for the files that globs deny, plans, makes the mounts and
// pivots to the new root. It returns the mounts that the view depends on
// ([Mounted]). [SocketPaths] finds the sockets of the host that a view should
// also cover.
//
// Linux only. Enter is called once, in a process that is alone in its
// namespaces. SocketPaths may be called at any time, also by several goroutines.
package view
