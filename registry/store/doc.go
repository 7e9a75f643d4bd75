// Package store keeps all state of a registry in NATS, in a server of this process
// or in a cluster: keys, identities, registrations, who is online, which servers
// live, and the secret that they sign with. Whatever one request leaves for another
// is here, so any number of servers on one store are one registry, and a revocation
// counts with the next request.
//
// A value is changed by comparing its revision: of two servers that change the same
// one, the second reads again. That is also how an environment stays with one
// executor. Register looks for a presence after it has read the registration, and
// SetOnline touches the registration after it has written the presence, so one of
// the two notices the other.
//
//	keys, identities          principal, by what it shows or by its id
//	registrations, presence   environment → executor; presence counts while its node lives
//	nodes, health             servers that were heard of; that the store can be written
//	secrets, replay           the shared key; newest assertion of each task
//
// All methods may run at once. An error that wraps ErrUnavailable says that NATS
// does not answer, and nothing about the value.
package store
