package main

// drawProcesses draws the processes on a host.
func drawProcesses(string) (string, error) {
	c := &canvas{width: 980, height: 588, title: "The processes on a host: an agent, its guard, its helpers, and the commands that it starts"}
	c.text(20, 28, "m", "An arrow leads from a parent to its child. Each process but the commands is the program agent; its children have a hidden first argument.")

	agent := around(20, 182, 170, "c", "agent", "serves clients; owns the", "sessions, and what they", "own; reaps orphans")
	const left, wide = 270, 690
	plain := []box{
		around(left, 70, wide, "a", "process-guard", "outlives the agent, and kills the process groups that the agent leaves behind"),
		around(left, 126, wide, "a", "sandbox-probe", "tries one layer of the sandbox when the first client comes, and ends"),
		around(left, 182, wide, "e", "fs-helper, one for each policy in use", "opens files under Landlock and a filter, and passes their descriptors to the agent; executes nothing"),
		around(left, 238, wide, "a", "a command without a sandbox", "leads a session of its own, in a terminal or on pipes"),
		around(left, 294, wide, "a", "exec-hold", "waits until the client allows the command, then becomes it, or its init"),
	}
	init := around(left+16, 402, 390, "e", "sandbox-init, PID 1 of its namespaces",
		"resolves the policy, makes the view, and watches its mounts;", "confines a thread, and forks the command from it;",
		"does the calls that the filter leaves to it")
	inside := around(790, 402, 154, "a", "the command", "and all that it starts")
	outer := around(left+16, 523, 210, "e", "sandbox-init, outer", "forks from a thread under", "the ceiling of the policy;", "passes signals on")
	inner := around(536, 523, 214, "e", "sandbox-init, inner", "the supervisor: does each listed", "call itself, on copies of its", "arguments, or refuses it")
	supervised := around(790, 523, 154, "a", "the command", "and all that it starts")
	c.room(box{x: left, y: 332, w: wide, h: 118, head: "new namespaces"})
	c.room(box{x: left, y: 458, w: wide, h: 118, head: ""})
	c.text(left+12, 477, "h", "a host that forbids namespaces")

	const trunk = 232
	for _, child := range append(plain, init, outer) {
		c.arrow("", point{agent.right(), agent.midY()}, point{trunk, agent.midY()}, point{trunk, child.midY()}, point{child.x, child.midY()})
	}
	for _, pair := range [][2]box{{init, inside}, {outer, inner}, {inner, supervised}} {
		c.arrow("", point{pair[0].right(), pair[0].midY()}, point{pair[1].x, pair[1].midY()})
	}
	for _, b := range append(plain, agent, init, inside, outer, inner, supervised) {
		c.box(b)
	}
	return c.svg(), nil
}
