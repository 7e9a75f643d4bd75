// Package console is the user's side of a command: its input and output, its signals, its terminal,
// and the questions that the user answers there.
//
//	agent exec, attach ─ Open ─── Console ─ Join(Command)   a command on an agent
//	agent sandbox ────── OpenAt ─ Console ─ Join(Command)   a Job on this machine
//	Console.Ask ─ Ask ─ AskCommands                         questions about commands
//
// The command never has the user's terminal, because it could change the terminal so that an answer
// is made without the user. At most one question is on the screen. Text that was typed before a
// question does not answer the question, and no text of a command can control the terminal from
// within a question.
package console
