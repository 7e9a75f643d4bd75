// Package mcpserver runs one server of the Model Context Protocol for a harness,
// through an executor. The server is a program that the executor starts and that
// speaks on its standard input and output, or an HTTP server that the executor sends
// requests to.
//
//	s := mcpserver.Start(mcpserver.Config{Client: c, Notify: show}, mcpserver.Spec{Name: "search", Argv: []string{"search-mcp"}, Dir: dir})
//	defer s.Close()
//	result, err := s.Call(ctx, "find", map[string]any{"text": "needle"})
//
// # Life
//
//	starting ──► ready ──► failed ──► starting (Server.Restart, Config.Restarts)
//	    └────────────────────▲
//
// [Start] returns at once; [Config.Notify] is called with each change of the state. A failed server
// stays failed until [Server.Restart] starts it again. With [Config.Restarts], a server that was
// ready is also restarted automatically: with growing delays, and a limited number of times in a
// row. Failed calls are never made again. The list of tools is read again when a server says that
// it has changed. The client repairs a lost connection to the executor, and the program does not
// notice. Close kills the program with every process that it started, and waits for that. If a
// program exits by itself, the processes that it leaves behind run until the executor's session
// ends (rpc.md 4.9).
//
// # Hostile servers
//
// A server's time to start and to answer is bounded, and so is the size of its messages and of its
// list of tools. The bytes that it sends unasked are bounded too: notifications, its standard
// error, lines that are no messages. A server that exceeds a bound has failed and is ended.
package mcpserver
