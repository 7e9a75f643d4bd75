// Package projection makes what the capability roots of a thread declare usable in its steps: MCP
// servers that run, connectors, skills that a model is told of.
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
// The servers that are projected together are a runtime. It is the same from step to step, with
// the same processes, until what is projected changes (client.md 6.2):
//
//	a root appears or goes that declares servers or connectors      another runtime
//	its environment has another client: a new session, a new handle another runtime
//	something was discovered that could not be before               another runtime
//	[Thread.Invalidate] was called                                  another runtime
//	a connection was lost and recovered                             the same
//	files have changed, a server has failed                         the same
//
// A server that has failed stays so, unless [Step.Restart] or [Config].Restarts starts it again, or
// another runtime does.
//
// A step uses one runtime for all that it does. The one before is shut down when no step holds it
// any more. A thread that is resumed, and a fork, are new Threads. A thread is closed before the
// environments are: without their clients its servers stay until their sessions end.
package projection
