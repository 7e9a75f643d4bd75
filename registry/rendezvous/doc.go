// Package rendezvous is where the websockets of executors and harnesses meet, at
// one server or at two (remote.md 4). It passes frames on by their stream ids, and
// cannot read what is in them.
package rendezvous
