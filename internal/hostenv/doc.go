// Package hostenv finds the facts about this machine that a client may ask for: the user's shell,
// the home and temporary directories, an identity of the agent's build, and the layers of
// configuration (rpc.md 3.4 and 3.6).
//
// Nothing is cached: every call reads the machine again. All functions may be called concurrently.
// Paths in arguments and results are native.
package hostenv
