// Nouserns executes a program as a container engine does under Docker's default profile, without an
// engine: no capability, no_new_privs, and a filter that refuses the calls that make namespaces and
// mounts. An agent under it must confine its commands without them.
//
//	go run ./test/rig/nouserns -- bin/agent doctor
//	go run ./test/rig/nouserns -uid 1000 -- /path/agent --listen ws://127.0.0.1:7000
//
// It needs no privilege, except CAP_SETPCAP to empty the bounding set, and CAP_SETUID for -uid.
// Without the first, the bounding set stays: no_new_privs keeps the capabilities in it out of
// reach.
//
// The filter is not Docker's whole list of allowed calls, but the part that agents notice. The
// tests of containers use the whole profile, through an engine.
package main
