// Package catalog shows the skills of executors to a model: a list, which is a section of the state
// of the world, and their texts, which are read when the model needs them.
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
// Descriptions come from strangers: each is joined to one line and shortened, and cannot end the
// section it stands in.
package catalog
