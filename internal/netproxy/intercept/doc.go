// Package intercept speaks TLS with a command in the place of the host that it wants to reach,
// so that requests inside can be judged and rewritten (network.md 8.5). An [Authority] is whom
// the command trusts for that; its key never leaves the memory of this process. [Serve] speaks
// HTTP/2 with the command, and whatever the destination offers with that one. HTTP/1 is spoken
// by package netproxy itself, which has a reader of its own for it.
//
// The destination is verified as if the command had asked itself: who may say that they are it
// is given by the roots of this host, and not by the authority.
package intercept
