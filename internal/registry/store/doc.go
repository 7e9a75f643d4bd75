// Package store keeps all state of a registry in NATS, in a server of this process or
// in a cluster: keys, identities, registrations, which executors are online, which
// servers live, and the secret that the servers sign with. Requests share state only
// through the store, so any number of servers on one store are one registry, and a
// revocation counts from the next request on.
//
// A value is written only if its revision is still the one that was read: of two
// servers that change the same value, the second reads again. This also keeps an
// environment with one executor, when an executor goes online and another key is
// registered at the same moment. Register reads the registration, then looks for a
// presence, then writes the registration. SetOnline writes the presence, then rewrites
// the registration unchanged, so either Register sees the presence, or one of the two
// finds that the registration has another revision.
//
//	keys, identities          [Principal], by its credential or by its id
//	registrations, presence   environment → executor; presence counts while its node lives
//	nodes, health             servers that were heard of; that the store can be written
//	secrets, replay           the shared key; newest assertion of each task
//
// All methods may run at once. An error that wraps ErrUnavailable means that
// NATS does not answer; it says nothing about the value.
package store
