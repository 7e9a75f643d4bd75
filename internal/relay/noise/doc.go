// Package noise is the end-to-end encryption of remote mode: the handshake of
// a harness with an executor, and the records that follow it (remote.md 6).
//
// The pattern is IK of the Noise specification with two kinds of keys, X25519
// and ML-KEM-768. So an attacker who records a handshake today has to break both
// algorithms later. The package knows neither frames nor websockets:
//
//	harness                                         executor
//	Initiate → message 1, an Initiator
//	                                                ReadInitiation → a Responder
//	                                                Respond → message 2, a Session
//	Finish → a Session
//	Seal ─────────────── a record each ───────────► Open
//
// An [Identity] is the static key pair of a process. Hash, cipher and Diffie-
// Hellman come from github.com/flynn/noise and the standard library. The
// pattern is implemented here, because no library has a pattern with key encapsulation.
package noise
