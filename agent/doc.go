// Package agent is the executor: it serves the methods of the protocol on connections, and keeps
// the sessions whose processes outlive a connection. The program agent is this package with flags.
//
//	a := agent.New(agent.Config{Environ: os.Environ(), Confines: true})
//	defer a.Close()
//	listener, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:7000"})
//	err = a.Serve(ctx, listener)
//
// [Config] holds every option of an operator; its zero value serves with the defaults. Functions
// make the options that are not plain values: [ReadPolicy] reads rules about commands, [NewNetwork]
// checks a policy for the network, [ProvideTool] makes a folder with apply_patch for the PATH of
// commands, [NewMetrics] makes a page for Prometheus.
//
// [New] makes an [Agent]. [Agent.Serve] takes connections from an rpc.Listener, such as one of
// package transport or a relay.Link; [Agent.ServeConn] serves a single one. Serve returns when ctx
// ends. [Agent.Close] then ends the sessions and kills their processes.
//
// A program that confines commands calls helper.Dispatch first in main and sets Config.Confines,
// because the agent starts this same program again to confine a command. Without Config.Confines,
// requests with a sandbox are refused.
//
// # Inside
//
//	Agent.Serve ─ accept ─ connection ─ rpc.Peer ─┬ process/*   Session → procs.Process
//	                                              ├ fs/*        fsops
//	                                              ├ http/*      requests by HTTP
//	                                              └ environment what this host offers
//
//	procs.Process ─ events ─ Session ─ the attached connection's peer ─ client
//
// A [Session] owns processes and has at most one connection attached. When the connection is lost,
// the session waits a limited time for a client that resumes it, then ends. A connection owns what
// ends with it: file handles, a watch, streamed HTTP bodies.
//
// Handlers of one connection run at the same time, as far as the table in methods.go allows. Lock
// order: Agent.mu, then Session.mu.
//
// # Limits
//
// Linux only. A program has only one agent, because the guard and the reaper of its Config
// work for all processes of the program.
package agent
