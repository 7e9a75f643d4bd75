// Package egress is the managed network of processes: it turns what a client asks for into a proxy
// of one process, asks the client what the policy leaves to it, and tells it of every verdict.
//
//	Of ─ Plan ─ Open ─┬ netproxy.Proxy ─ at the listeners of a gate
//	                  ├ question ─ Network.decide ─ Ask, of the session
//	                  └ verdict ─ Reports ─ the session's client
//
// What keeps the process from going past its proxy is not here: a sandbox does (internal/sandbox/confine).
package egress
