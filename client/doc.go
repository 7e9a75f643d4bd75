// Package client drives an exec-server: the agent of this module, or any other
// that speaks the same protocol. It runs commands, works on files and makes
// HTTP requests there.
//
//	c, err := client.Connect(ctx, client.Config{
//		Dial: func(ctx context.Context) (rpc.Conn, error) {
//			return transport.Dial(ctx, "ws://127.0.0.1:7000", transport.DialConfig{})
//		},
//	})
//	defer c.Close()
//	p, err := c.Start(ctx, protocol.StartParams{
//		Argv: []string{"make", "test"},
//		Cwd:  protocol.NewPathURI("/srv/w"),
//	})
//	code, err := p.CopyOutput(ctx, os.Stdout, os.Stderr)
//
// # Events and pressure
//
// One goroutine reads the connection. It puts the events of each process in order
// by their sequence numbers and into a queue of at most 4 MiB, from which
// [Process.Events] takes them. Nothing is ever dropped: a full queue stops the
// reading, and with it everything else of the connection, answers included. So a
// caller that starts a process takes its events, in a goroutine of their own if it
// has more to do meanwhile, or says with [Process.Discard] or [Process.Close] that
// it will not. The same holds for streamed HTTP bodies, which end with Close.
//
// # Loss
//
// When the connection is lost, every call and every handle fails with a
// [DisconnectedError], after what had arrived before. The session outlives its
// connection on the server for a while: [Config.ResumeSessionID] comes back to it.
// A resumed session has no [Process] handles yet: events from the time in which no
// client was attached are not sent again, and later ones find no handle. Ask with
// [Client.Call]: process/list names the processes, process/read with afterSeq
// returns what the server has kept of one.
package client
