package main

// drawNetwork draws the way out of a command with a managed network.
func drawNetwork(string) (string, error) {
	c := &canvas{width: 980, height: 434, title: "The way out of a command: its names, its connections and its proxy lead to the gate, the rules and the questions of the agent, and from there to a destination"}
	c.room(box{x: 16, y: 16, w: 190, h: 300, head: "a command"})
	c.room(box{x: 424, y: 16, w: 540, h: 300, head: "the agent"})

	name := around(32, 80, 158, "a", "looks a name up", "of any host")
	connect := around(32, 178, 158, "a", "connects", "as if there were", "a network")
	knows := around(32, 266, 158, "a", "uses a proxy", "that its variables", "name")
	held := around(234, 178, 164, "e", "connect(2) is held", "until there is an answer", "of the agent")
	ports := around(234, 266, 164, "e", "its own proxy", "HTTP, CONNECT, SOCKS5;", "for nobody else")
	resolver := around(440, 80, 160, "c", "resolver", "invents addresses;", "looks nothing up")
	gate := box{x: 440, y: 146, w: 160, h: 152, class: "c", head: "gate", lines: []string{
		"lets in only the", "connections of this", "command", "", "turns an invented", "address into its name"}}
	rules := box{x: 626, y: 146, w: 146, h: 152, class: "c", head: "rules", lines: []string{
		"the operator's list and", "the client's: the", "stricter one decides", "", "hosts and ports;", "methods and paths"}}
	questions := around(626, 80, 146, "b", "questions", "to the client, or", "at the terminal")
	dial := box{x: 808, y: 146, w: 140, h: 152, class: "c", head: "look-up", lines: []string{
		"only now, and once", "", "local and private", "addresses: refused", "unless allowed;", "the others: dialled"}}
	refused := around(424, 380, 182, "d", "refused", "connect(2): EACCES; proxy:", "403 and the reason; the", "client gets a report")
	upstream := around(626, 380, 146, "d", "upstream proxy", "if there is one for", "this connection")
	direct := around(808, 380, 140, "d", "the destination", "otherwise: directly")

	for _, pair := range [][2]box{{connect, held}, {knows, ports}, {gate, rules}, {rules, dial}} {
		y := pair[0].midY()
		c.arrow("", point{pair[0].right(), y}, point{pair[1].x, y})
	}
	for _, way := range []box{held, ports} {
		c.arrow("", point{way.right(), way.midY()}, point{gate.x, way.midY()})
	}
	c.both(point{name.right(), name.midY()}, point{resolver.x, resolver.midY()})
	c.text(214, name.midY()-8, "m", "an invented address, at once")
	c.arrow("dash", point{resolver.midX(), resolver.bottom()}, point{gate.midX(), gate.y})
	c.both(point{questions.midX(), rules.y}, point{questions.midX(), questions.bottom()})

	const turn = 330 // below the agent
	c.arrow("", point{rules.x + 30, rules.bottom()}, point{rules.x + 30, turn}, point{refused.midX(), turn}, point{refused.midX(), refused.y})
	c.arrow("", point{dial.x + 30, dial.bottom()}, point{dial.x + 30, turn}, point{upstream.midX(), turn}, point{upstream.midX(), upstream.y})
	c.arrow("", point{direct.midX(), dial.bottom()}, point{direct.midX(), direct.y})
	for _, b := range []box{name, connect, knows, held, ports, resolver, gate, rules, questions, dial, refused, upstream, direct} {
		c.box(b)
	}
	c.text(32, 366, "m", "Where the sandbox enforces the managed network, there is")
	c.text(32, 382, "m", "no other way out: UDP, ICMP and other ports are refused.")
	return c.svg(), nil
}
