// Package catalog makes what a model sees of the skills of executors: a list, which is a section of
// the state of the world, and the texts, which are read when the model needs them.
//
//	cache := New(Config{})
//	var section Section
//
//	list := cache.List(view)                      // in each step
//	message, ok := section.Next(list.Render())    // for the model, only when something changed
//	page, err := list.Read(ctx, ReadRequest{Package: "e0/skills/deploy"})
//
// A skill is named by its package: skill://, the id of the root that it was found in, and the
// path of its folder. In a selected root that is shortened: e0/skills/deploy, where e0 is in
// the table at the head of the list. Both are understood.
//
// Descriptions are texts of strangers: they are made one line, shortened, and cannot end the
// section that they are in.
package catalog
