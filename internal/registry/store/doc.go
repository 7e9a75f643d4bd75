// Package store keeps all state of a registry in NATS, in a server of this process or
// in a cluster: keys, identities, registrations, presences of executors, the servers
// that live, and the secret that the servers sign with. Requests share state only
// through the store. So any number of servers on one store are one registry, and a
// revocation takes effect with the next request.
//
// A value is written only if it still has the revision that was read. If two servers
// change the same value, the second server reads again. This also keeps an environment
// at one executor if an executor goes online and another key is registered at the same
// time. Register reads the registration, then looks for a presence, then writes the
// registration. SetOnline writes the presence, then rewrites the registration
// unchanged. So either Register sees the presence, or one of the two finds that the
// registration has another revision.
//
//	keys, identities          [Principal], by its credential or by its id
//	registrations, presence   environment → executor; presence counts while its node lives
//	nodes, health             servers that live; servers that could write to the store
//	secrets, replay           the shared key; newest assertion of each task
//
// All methods may be called concurrently. An error that wraps ErrUnavailable means that
// NATS does not answer; it says nothing about the value.
package store
