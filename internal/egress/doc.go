// Package egress is the managed network of processes. It turns the request of a client into a proxy
// for one process, asks the client where the policy leaves a decision to it, and reports every
// verdict to the client.
//
//	Of ─ Plan ─ Open ─┬ netproxy.Proxy ─ at the listeners of a gate
//	                  ├ question ─ Network.decide ─ Ask, of the session
//	                  └ verdict ─ Reports ─ the session's client
//
// It does not keep the process from bypassing its proxy: a sandbox does that
// (internal/sandbox/confine).
package egress
