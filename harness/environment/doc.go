// Package environment has the environments of a harness, and the clients that reach
// them. An environment is an executor under an id, which stands for the same
// executor for ever.
//
// A [Plan] lists the environments: [Load] reads it from the configuration of the
// process, as the reference does. [New] makes a [Set] of it:
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
// package opens nothing itself: the program passes a [Connector], so it links only the
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
// offline. A caller that learns that an executor was replaced calls [Environment.Refresh].
//
// [Environment.Client], [Environment.Start] and [Set.Step] count as need.
// [Environment.State] and [Environment.Status] do not: they change nothing.
//
// # Ids and handles
//
// [Set.Upsert] puts a new handle under an id. Work that is under way goes on with the
// old handle: a [Step] captured it, and releases it when the step ends.
package environment
