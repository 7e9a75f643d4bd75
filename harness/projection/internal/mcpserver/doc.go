// Package mcpserver runs one server of the Model Context Protocol for a harness, at an
// executor or from there: a program that the executor starts and that speaks on its
// standard input and output, or an HTTP server that the executor sends requests to.
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
// [Start] returns at once; each change of the state is told to [Config.Notify]. A server
// that has failed stays so until [Server.Restart] starts it again. With [Config.Restarts] one
// that was ready is also started by itself, later each time, and not for ever; its calls are
// never made again. The list of tools is read again when a server says that it has changed.
// A lost connection to the executor is repaired by the client, and the program does not notice.
// Close ends the program with all that it has started, and waits for that. Only what a program
// leaves behind that exits by itself is left alone by the executor, until the session there
// ends (rpc.md 4.9).
//
// # Servers that mean no good
//
// A server has a bound on the time that it takes to start and to answer, on the size of a
// message, on the size of its list of tools, and on what it says without having been asked:
// notifications, its standard error, lines that are no messages. One that goes beyond has
// failed, and is ended.
package mcpserver
