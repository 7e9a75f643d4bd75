// Package agent is the executor: it serves the methods of the protocol on
// connections that a listener yields, and keeps the sessions whose processes
// outlive a connection.
//
//	agent.Serve ─ accept ─ connection ─ rpc.Peer ─┬ process/*   Session → procs.Process
//	                                              ├ fs/*        fsops
//	                                              ├ http/*      httpclient
//	                                              └ environment hostenv
//
//	procs.Process ─ events ─ Session ─ the attached connection's peer ─ client
//
// A [Session] owns processes and has at most one connection attached. When the
// connection is lost, the session waits for a resume and then ends. A connection
// owns what dies with it: file handles, a watch, streamed HTTP bodies.
//
// Handlers of one connection run at once, as far as the table in methods.go lets
// them. Agent.mu may be held while Session.mu is taken, not the other way round.
//
// Linux only.
package agent
