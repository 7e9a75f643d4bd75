// Package environment has the environments of a harness: the executors that it works
// with, each under an id that stands for the same executor for ever, and the clients
// that reach them.
//
// A [Plan] says which there are: [Load] reads it from the configuration of the process,
// as the reference does. [New] makes a [Set] of it:
//
//	plan, err := environment.Load(home, os.Getenv)
//	set, err := environment.New(environment.Config{Connect: connect, Local: local}, plan)
//	defer set.Close()
//	e, ok := set.Default()
//	c, err := e.Client(ctx)
//	p, err := c.Start(ctx, params)
//
// # Transports
//
// An environment is remote if it has a [Transport]: a [URL], a [Stdio] or [Noise]. The
// package opens nothing itself; the program hands in a [Connector], and so links only the
// transports that it uses:
//
//	func connect(t environment.Transport) (client.Config, error) {
//		switch t := t.(type) {
//		case environment.URL:
//			return client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
//				return transport.Dial(ctx, t.URL, transport.DialConfig{Header: t.Headers()})
//			}}, nil
//		}
//		return client.Config{}, fmt.Errorf("environments of type %T are not supported", t)
//	}
//
// The one environment without a transport is [Local]. It goes through the same client,
// over a connection in memory that [Config.Local] opens.
//
// # When it connects
//
//	URL, Noise    in the background when it is registered; again after its client failed
//	Program       when it is first needed, and once
//	local         when it is first needed; again after its client failed
//	provisioned   once [Environment.Ready] was called and it is needed
//
// An environment behind Noise that was provisioned is tried for 5 minutes while its executor is
// offline. Who hears that an executor was replaced calls [Environment.Refresh].
//
// [Environment.Client], [Environment.Start] and [Set.Step] need an environment.
// [Environment.State] and [Environment.Status] do not: asking changes nothing.
//
// # Ids and handles
//
// [Set.Upsert] puts a new handle under an id. Who is in the middle of something goes on
// with the old one: a [Step] has captured it, and releases it at its end.
package environment
