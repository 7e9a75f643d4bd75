// Package rulefile reads rules about commands from files.
//
// A file is a module of Starlark, a small Python without side effects. What it calls makes the
// rules:
//
//	prefix_rule(
//	    pattern = ["git", ["push", "fetch"]],
//	    decision = "prompt",
//	    justification = "this leaves the machine",
//	    match = ["git push origin"],
//	    not_match = ["git status"],
//	)
//	host_executable(name = "git", paths = ["/usr/bin/git"])
//
// A file is evaluated from top to bottom, and then its examples are tried. If anything in it is
// wrong, nothing of it counts, and the error names file, line and column.
//
// Files may come from a client, so what they can use up is bounded: their size and rules
// ([Bounds]), the steps of their evaluation and the depth of their calls, and the size of all
// values they make, which the language itself would let grow twofold with every step ([meter]). The
// dialect is that of docs/protocol/execpolicy.md 2.1, or stricter; the package's exceptions are in
// its tests.
package rulefile
