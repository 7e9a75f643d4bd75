// Package hold keeps names from coming into being while confined processes run:
// the protected and denied ones that are missing in a writable root. It puts
// placeholders there, and knows one when it sees one.
//
// [Placeholders] holds names ([Missing]) for any number of users and lets go of
// each behind the last. The ledger says where an agent has placeholders, so
// that the next one removes what a dead one left. [StateDir] chooses the
// directory of the ledgers, which all agents of a user share.
//
// Linux only. The methods of Placeholders may run at once, in one agent and in
// several; all else is pure or looks at the file system and keeps nothing.
package hold
