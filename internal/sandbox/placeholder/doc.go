// Package placeholder keeps names from coming into being while confined processes run:
// the protected and denied names that are missing in a writable root. It puts a
// placeholder at each, and recognises placeholders ([IsPlaceholder]).
//
// [Placeholders] holds names ([Missing]) for any number of users, and lets go of
// a name when its last user has released it. A ledger is a file that says where
// one agent has placeholders; from it the next agent learns what a dead one has
// left, and removes that. [StateDir] chooses the directory of the ledgers, which
// all agents of a user share.
//
// Linux only. The methods of Placeholders may run at once, in one agent and in
// several. So may the funcs, which remember nothing from one call to the next.
package placeholder
