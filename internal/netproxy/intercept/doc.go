// Package intercept speaks TLS with a command in place of the host that the command wants to reach,
// so that requests inside can be judged and rewritten (network.md 8.5). The command trusts an
// [Authority] for this purpose. Its key never leaves the memory of this process. [Serve] speaks
// HTTP/2 with the command, and HTTP/2 or HTTP/1 with the destination. Package netproxy itself
// speaks HTTP/1, because it has its own reader for HTTP/1.
//
// The destination is verified as if the command had connected itself: its certificate is checked
// against the roots of this host, not against the authority.
package intercept
