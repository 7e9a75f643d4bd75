// Package capability has the capability roots of a thread: folders with skills and plugins, in the
// environments of a harness. The selection is kept with the thread. The contents of a root are read
// once, and count in the steps in which the root's environment is ready.
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
// Each step resolves it again, from the clients and environments that the step captured. An
// environment that was not ready when the step began has no roots in it, and a root keeps the
// captured client until the step ends. An environment with a root is captured and started even if
// nothing else uses it.
//
// The contents of a root are asked for once in the life of a [Thread], by whichever client, and
// stay. If an agent has no discovery, the same files are read one by one, by the same rules and
// within the same bounds. Agents also report what is installed for their user: see
// [View.Environments].
//
// # What agents answer
//
// An answer must come within [Config].Timeout. Its size is bounded, and it is checked against the
// request. An answer that does not fit is an error of the root in question. This package does not
// interpret the contents, so their reader must expect anything.
package capability
