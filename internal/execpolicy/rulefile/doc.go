// Package rulefile reads rules about commands from files.
//
// A file is a module of Starlark, a small Python without side effects. Its calls make the rules:
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
// A file is evaluated from top to bottom, then its examples are checked. A file with an error does
// not count at all; the error names file, line and column.
//
// Files may come from a client, so their resources are bounded: their size and number of rules
// ([Bounds]), the steps of their evaluation, the depth of their calls, and the size of all values
// they make ([meter]). The last bound is needed because the language alone would let a value double
// with every step. The dialect is that of docs/protocol/execpolicy.md 2.1, or stricter; the tests
// of this package list the exceptions.
package rulefile
