// Package netproxy is the way out for one command: proxies for HTTP (plain requests, and
// tunnels by CONNECT) and for SOCKS5 (streams, and datagrams) that let through what a policy
// allows, and whatever else somebody is asked about and allows. It knows no RPC and no sandbox.
// That the command has no other way out is seen to elsewhere.
//
//	p := New(Config{Policy: policy, Decide: ask, Report: tell})
//	go p.Serve(HTTP, listener)
//	...
//	p.Close()
//
// Every request, of whatever protocol, is admitted in one place, Proxy.admit, and Proxy.connect
// makes the connection of those by TCP:
//
//	Policy.Judge        the name: denied, allowed, or to be asked about (Config.Decide)
//	Proxy.resolve       once
//	Policy.JudgeAddresses, JudgeMethod, JudgeDial   all addresses that were found
//	Config.Report       each verdict, in the words of package rules
//	dial                one of exactly these addresses
//
// Nothing is remembered of an answer: the next request on the same connection is judged anew.
//
//	command ──► head.Reader ──► client.serve ┬ client.exchange   plain: its head is written anew (outgoing),
//	                                         │                   bodies are passed on as they come
//	                                         └ client.connect    a tunnel: dialled first, then answered;
//	                                                             Proxy.tunnel looks at the TLS greeting and moves bytes
//	command ──► Proxy.serveSOCKS ┬ the same tunnels
//	                             └ association     datagrams: one verdict for each destination
//
// With [Config.Credentials], tunnels to where a credential of the command may go are looked into
// (Proxy.look), in limited mode all: TLS is spoken with the command in the place of the
// destination, and requests inside are judged by their method and have their credentials put
// back. HTTP/1 goes through the same client.serve there; HTTP/2 through package intercept.
//
// A name of TLS in a tunnel that is not the name of the tunnel ends it: otherwise an allowed
// name would lead to all others behind the same addresses.
//
// Of a request, nothing but its host, port and method is told to anybody, and nothing is logged.
//
// Everything that the command or a destination could make large is bounded by a constant
// (limits.go). A [Proxy] owns all its goroutines and connections: Close ends them and waits.
package netproxy
