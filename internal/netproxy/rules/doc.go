// Package rules judges by name and address what a command may reach. It is made of
// values: it resolves no name and opens no socket, so whoever asks for a verdict does
// these and comes back with what was found.
//
// A [Hosts] is compiled of the [Rules] that a client sends, and may stand under another,
// its ceiling, of the operator: then each question goes to both, and the stricter answer
// is the verdict. A request goes through the steps of network.md 3.1 in this order:
//
//	Judge           what the mode forbids everybody, denied names, local literals, the lists
//	                (the caller asks the client, if the verdict is Ask)
//	JudgeAddresses  where the name leads: nothing local, unless that is allowed
//	JudgeMethod     what may be done there in limited mode
//	JudgeDial       the address that is dialled indeed
//
// Each name that these are given has gone through [Host] before. Names are ASCII on the
// wire; a pattern in other letters stands for its A-label, so letters that merely look
// alike match nothing.
package rules
