// Package gate has the listeners of the proxy of one command. They yield only the
// command's own connections, whichever way the command is kept from everything else
// (network.md 9 and 10, L17). Linux only.
//
//	[Inside]  the command has a network namespace of its own. Its init makes the
//	          listening sockets there and passes them on ([Serve]): no port of the host
//	[Told]    the command has the host's network, and a supervisor, which connects for
//	          it and announces each connection first ([Teller]): all others are closed
//	[Owned]   nothing confines the command: connections of other users are closed
//
//	command ──► 127.0.0.1:port ──► listener.Accept: is it the command's? ──► the proxy
//
// A gate can also hold connections to any address ([Gate.Hold]): the command's connect(2) waits until the
// agent has judged and dialled the destination. [Held] is the agent's end, and [Holder] that of the
// supervisor, which may be the init of a namespace (transparent.md 2).
//
// A [Gate] also passes connections on to ports of the host, for a client that has given
// the command a proxy itself ([Gate.Bridge]).
package gate
