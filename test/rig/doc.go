// Package rig starts the programs that the tests of test/ drive: real programs, as users run them,
// that talk over sockets on loopback.
//
// A [Program] is a running program: its output is kept, and it ends with the test that started it,
// also when the test is killed. A [Site] is a registry with its keys, and the agents and commands
// that reach each other through it. A [Proxy] stands between two programs and treats their
// connections like a network: it cuts them, delays them, refuses them, or leads them to another
// server. [Listen] is the server of a few lines that something connects to.
//
// [WriteProgram], [CProgram] and [FreeAddress] are for tests of any package that execute a file
// they wrote, or need an address before anything listens there.
//
// Every function that can fail a test takes a [T], so that a benchmark, which is no test, can use
// it too ([Outside]). Any number of goroutines may call the methods of a Program, a Site and a
// Proxy, but only one at a time may start or end a program.
package rig
