// Package hostenv finds out what a client may ask about this machine: the shell of
// the user, the home and temporary directories, an identity of the agent's build,
// and the layers of configuration (rpc.md 3.4 and 3.6).
//
// All functions read the machine anew at each call and may run at once. Paths
// in and out are native.
package hostenv
