// Package caps takes capabilities away from a process of ours, for good, before
// the process begins its work: from one thread or from all. It also makes sure
// that none is left. Nothing here gives a capability. Linux only;
// capabilities(7).
//
// Capabilities belong to threads. A caller that means its own thread alone locks
// the goroutine to it first.
package linux
