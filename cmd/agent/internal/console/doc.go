// Package asking asks the user of a terminal: whether a command may run, and what else a command
// wants that somebody has to decide.
//
//	agent sandbox ─ Terminal.Ask ◄─┬─ Commands ◄─ questions about commands
//	agent exec ─ Console.Ask ◄─────┘
//
// Both ask one question at a time. No answer is what was typed before it, and what they show does
// nothing to the terminal, whatever is asked about.
package console
