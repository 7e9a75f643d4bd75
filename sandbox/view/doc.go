// Package view makes the root directory that a confined process sees: one in
// which every path has the access that the policy says.
//
// A plan (planView) is pure: from a resolved policy and from what lies at its
// paths it gives the mounts, outermost first. [Enter] looks at these paths,
// plans, makes the mounts and pivots to the new root; what globs deny is searched
// for there and then, file by file. It tells which mounts the view depends on
// ([Mounted]). [SocketPaths] finds what a view should cover besides.
//
// Linux only. Enter is called once, in a process that is alone in its
// namespaces; SocketPaths may run at once.
package view
