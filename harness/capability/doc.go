// Package capability has the capability roots of a thread: folders with skills and plugins, in
// the environments of a harness. Which are selected is kept with the thread; what is in them is
// found out once, and counts in the steps in which their environment is ready.
//
//	roots, err := capability.Parse(log.Meta().SelectedCapabilityRoots)
//	thread, err := capability.New(capability.Config{Roots: roots})
//
//	step := set.Step(id, selection, linux.Environments()...)
//	defer step.Release()
//	view, err := linux.Discover(ctx, step)
//	for _, root := range view.Roots {
//		use(root.Client, root.Skills)
//	}
//
// # From a selection to files
//
//	Root ──────────► Resolved ──────────► Found
//	what is wanted,  with the client of   the files of the root,
//	for the life     its environment,     for the life of the Thread
//	of the thread    for a step
//
// A [Root] is stable: an id, an environment, a path. Its stored form is what package threadlog
// keeps and what resumed threads and forks of all kinds inherit.
//
// It is resolved in each step anew, by what the step has captured: an environment that was not
// ready when the step began has no roots in it, and a client that was captured is that of the
// root until the step ends. An environment that nobody works with but that has a root is captured
// too, and started.
//
// What is in a root is asked for once in the life of a [Thread], whichever client does it, and
// stays. Where an agent has no discovery, the same files are read one by one, by the same rules and
// within the same bounds. Agents also tell what is installed for their user: [View.Environments]
// has that beside the roots.
//
// # What agents answer
//
// It is waited for within [Config].Timeout, bounded, and held against what was asked. What does not
// fit is an error of the root that it is about. Contents mean nothing here: whoever
// reads them has to expect anything.
package capability
