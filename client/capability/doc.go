// Package capability has the capability roots of a thread: folders with skills and plugins, in
// the environments of the harness. Which are selected is kept with the thread; what is in them is
// found out once, and only for the steps in which their environment is ready.
//
//	roots, err := capability.Parse(meta.SelectedCapabilityRoots)
//	thread, err := capability.New(capability.Config{Roots: roots})
//
//	step := set.Step(id, selection, thread.Environments()...)
//	defer step.Release()
//	view, err := thread.Discover(ctx, step)
//	for _, root := range view.Roots {
//		use(root.Client, root.Skills)
//	}
package capability
