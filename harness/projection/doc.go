// Package projection makes the declarations of a thread's capability roots usable in its steps: it
// runs their MCP servers, lists their connectors, and tells a model of their skills.
//
//	set ──► environment.Step ──► capability.View ──► projection.Step
//
//	thread := projection.New(projection.Config{Notify: show})
//	defer linux.Close()
//
//	step := set.Step(id, selection)                    // for each step of the model
//	view, err := roots.Discover(ctx, step)             // roots is a capability.Thread
//	p, err := linux.Step(ctx, step, view)
//	defer p.Release()
//	tell(p.SkillsMessage())
//	offer(p.Tools(), p.Connectors())
//	result, err := p.Call(ctx, "search", "find", arguments)
//
// # Runtimes
//
// The servers that are projected together are a runtime. It is the same from step to step, with the
// same processes, until the projected declarations change (client.md 6.2):
//
//	a root appears or goes that declares servers or connectors      another runtime
//	its environment has another client: a new session, a new handle another runtime
//	something was discovered that could not be before               another runtime
//	[Thread.Invalidate] was called                                  another runtime
//	a connection was lost and recovered                             the same
//	files have changed, a server has failed                         the same
//
// A failed server stays failed until [Step.Restart], [Config].Restarts or another runtime starts it
// again.
//
// A step uses a single runtime. The previous runtime is shut down when no step holds it any more. A
// resumed thread and a fork are new Threads. Close a thread before its environments, because
// without their clients its servers run on until their sessions end.
package projection
