package main

// drawOverview draws who talks to whom.
func drawOverview(string) (string, error) {
	c := &canvas{width: 980, height: 400, title: "Clients reach an agent by a WebSocket, by standard input and output, or through a registry and its relay"}
	c.room(box{x: 16, y: 16, w: 214, h: 368, head: "clients"})
	c.room(box{x: 568, y: 16, w: 396, h: 368, head: "the host of the commands"})

	harness := around(32, 84, 182, "b", "a harness", "the Codex CLI, or Go code", "with the package client")
	cli := around(32, 164, 182, "b", "agent exec, cp, …", "the same program", "as a client")
	far := around(32, 292, 182, "b", "a client far away", "neither end can dial", "the other one")
	socket := around(300, 84, 200, "a", "WebSocket", "ws://, wss:// or a UNIX socket;", "a token, or the user's id")
	stdio := around(300, 164, 200, "a", "stdio", "the client starts the agent,", "for example through ssh")
	registry := around(300, 252, 200, "d", "registry", "who may meet whom: keys,", "signed addresses")
	rendezvous := around(300, 340, 200, "d", "rendezvous", "passes frames on,", "and cannot read them")
	agent := box{x: 586, y: 52, w: 128, h: 316, class: "c", head: "agent", lines: []string{
		"sessions outlive", "their connections", "", "processes, files,", "HTTP, sockets", "", "rules, questions", "to the client", "",
		"a policy is enforced", "exactly, or the", "request is refused"}}
	bare := around(772, 84, 176, "a", "a command", "in a terminal or on pipes")
	helper := around(772, 156, 176, "e", "fs-helper", "does file requests under a", "policy; is confined itself")
	init := around(772, 240, 176, "e", "sandbox-init", "puts the sandbox on,", "starts the command and", "looks after it")
	confined := around(772, 340, 176, "e", "a confined command", "files, network, programs:", "what the policy allows")

	for _, way := range [][2]box{{harness, socket}, {cli, stdio}, {far, rendezvous}} {
		from, via := way[0], way[1]
		y := via.midY()
		if from.head == far.head {
			c.both(point{from.midX(), from.bottom()}, point{from.midX(), y}, point{via.x, y})
		} else {
			c.both(point{from.right(), y}, point{via.x, y})
		}
		c.both(point{via.right(), y}, point{agent.x, y})
	}
	c.both(point{cli.right(), cli.y + 14}, point{264, cli.y + 14}, point{264, socket.midY() + 16}, point{socket.x, socket.midY() + 16})
	c.arrow("dash", point{far.right(), far.y + 14}, point{250, far.y + 14}, point{250, registry.midY()}, point{registry.x, registry.midY()})
	c.arrow("dash", point{agent.x, registry.midY()}, point{registry.right(), registry.midY()})
	c.text(507, registry.midY()-8, "m", "HTTPS")
	c.text(136, rendezvous.midY()+17, "m", "encrypted end to end")
	c.text(507, rendezvous.midY()+17, "m", "encrypted")

	for _, child := range []box{bare, helper, init} {
		c.both(point{agent.right(), child.midY()}, point{child.x, child.midY()})
	}
	c.arrow("", point{init.midX(), init.bottom()}, point{confined.midX(), confined.y})
	for _, b := range []box{harness, cli, far, socket, stdio, registry, rendezvous, agent, bare, helper, init, confined} {
		c.box(b)
	}
	return c.svg(), nil
}
