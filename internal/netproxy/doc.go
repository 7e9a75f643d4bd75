// Package netproxy is the way out for one command: proxies for HTTP (plain requests, and tunnels by
// CONNECT) and for SOCKS5 (streams, and datagrams) that let through what a policy allows, or what
// an asker allows. It knows no RPC and no sandbox. Another package makes sure that the command has
// no other way out.
//
//	p := New(Config{Policy: policy, Decide: ask, Report: tell})
//	go p.Serve(HTTP, listener)
//	...
//	p.Close()
//
// Proxy.admit admits every request, of whatever protocol, and Proxy.connect makes the connections
// of requests by TCP:
//
//	Policy.Judge        the name: denied, allowed, or to be asked about (Config.Decide)
//	Proxy.resolve       once
//	Policy.JudgeAddresses, JudgeMethod, JudgeDial   all addresses that were found
//	Config.Report       each verdict, in the words of package rules
//	dial                one of exactly these addresses
//
// Answers are not remembered: the next request on the same connection is judged again.
//
//	command ──► head.Reader ──► client.serve ┬ client.exchange   plain: its head is written again (outgoing),
//	                                         │                   bodies are passed on as they come
//	                                         └ client.connect    a tunnel: dialled first, then answered;
//	                                                             Proxy.tunnel looks at the TLS greeting and moves bytes
//	command ──► Proxy.serveSOCKS ┬ the same tunnels
//	                             └ association     datagrams: one verdict for each destination
//
// With [Config.Credentials], the proxy looks into tunnels to destinations of the command's
// credentials (Proxy.look), in limited mode into all tunnels. It speaks TLS with the command in the
// destination's place, judges the requests inside by their method, and puts their credentials back.
// HTTP/1 goes through the same client.serve there; HTTP/2 goes through package intercept.
//
// If the TLS name in a tunnel differs from the tunnel's name, the tunnel ends. Otherwise an allowed
// name would lead to all other names behind the same addresses.
//
// The proxy reports only the host, port and method of a request, and logs nothing.
//
// Constants bound everything that the command or a destination could make large (limits.go). A
// [Proxy] owns all its goroutines and connections: Close ends them and waits.
package netproxy
