// Package netproxy gives one command access to the network through proxies: one for HTTP (plain
// requests, and tunnels by CONNECT) and one for SOCKS5 (streams, and datagrams). The proxies let
// through requests that a policy or an asker allows. The package knows neither RPC nor sandboxes.
// Another package makes sure that the command has no other access to the network.
//
//	p := New(Config{Policy: policy, Decide: ask, Report: tell})
//	go p.Serve(HTTP, listener)
//	...
//	p.Close()
//
// Proxy.admit judges every request, whatever its protocol. Proxy.connect makes the TCP connections
// of requests:
//
//	Policy.Judge        the name: denied, allowed, or to be asked about (Config.Decide)
//	Proxy.resolve       once
//	Policy.JudgeAddresses, JudgeMethod, JudgeDial   all addresses that were found
//	Config.Report       each verdict, in the words of package rules
//	dial                one of exactly these addresses
//
// [Proxy.Prepare] and [Prepared.Join] are a second way to the same tunnels, for a command that knows of
// no proxy: its connect(2) waits for Prepare.
//
// Verdicts are not remembered: the next request on the same connection is judged again. [Proxy.SetPolicy]
// replaces the policy, and judges everything again that was allowed and is not over (live.go).
//
//	command ──► head.Reader ──► client.serve ┬ client.exchange   plain: its head is written again (outgoing),
//	                                         │                   bodies are passed on as they come
//	                                         └ client.connect    a tunnel: dialled first, then answered;
//	                                                             Proxy.tunnel looks at the TLS greeting and moves bytes
//	command ──► Proxy.serveSOCKS ┬ the same tunnels
//	                             └ association     datagrams: one verdict for each destination
//
// With [Config.Credentials], the proxy looks into tunnels to destinations that may receive a
// credential of the command (Proxy.look). With request rules it also looks into tunnels to the hosts of
// these rules, and in limited mode into all tunnels. It speaks TLS with the command in place of the
// destination. It judges the requests inside by their method, and by request rules (Proxy.judgeInside).
// It puts credentials in place of their placeholders. Inside a tunnel, HTTP/1 goes through the same
// client.serve, and HTTP/2 goes through package intercept.
//
// If the server name in the TLS greeting differs from the host of the tunnel, the tunnel ends.
// Otherwise an allowed name would give access to all other names that have the same addresses.
//
// The proxy reports only the host, port and method of a request, and its path if the host has request
// rules. It logs nothing.
//
// Constants bound everything that the command or a destination could make large (limits.go). A
// [Proxy] owns all its goroutines and connections: Close ends them and waits.
package netproxy
