// Package placeholder prevents the creation of names while confined processes run: the
// protected and denied names that are missing in a writable root. It puts a
// placeholder at each of them, and recognises placeholders ([IsPlaceholder]).
//
// [Placeholders] holds names ([Missing]) for any number of users, and removes
// the placeholder of a name when the last user has released it. A ledger is a
// file that lists the placeholders of one agent. With it, the next agent finds
// and removes the placeholders of a dead agent. [StateDir] chooses the directory
// of the ledgers, which all agents of a user share.
//
// Linux only. The methods of Placeholders may run at once, in one agent and in
// several. So may the funcs, which remember nothing from one call to the next.
package placeholder
