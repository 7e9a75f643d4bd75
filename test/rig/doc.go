// Package rig starts what the tests of test/ drive, as its users have it: real programs that talk
// over sockets on loopback.
//
// A [Program] is one that runs: what it prints is kept, and it ends with the test that started
// it, also when the test is killed. A [Site] is a registry with its keys, and the agents and
// commands that reach each other through it. A [Proxy] stands between two programs and does to
// their connections what a network does: cuts them, holds them up, refuses them, brings them to
// another server. [Listen] is the server of a few lines that something connects to.
//
// [WriteProgram], [CProgram] and [FreeAddress] are for tests of any package that execute what they
// have written, or need an address before anybody listens there.
//
// Everything that can fail a test takes a [T], so that a benchmark, which is no test, has it too
// ([Outside]). The methods of a Program, a Site and a Proxy may be called by any number of
// goroutines, but those that start or end a program only by one at a time.
package rig
