// Package approval applies two policies about commands to the processes that a client starts: the
// operator's, and the one in the client's request (execpolicy.md 8). Where the policies leave a
// decision to the client, it asks the client.
//
//	Desk.Decide ─► Plan ─ Desk.Open ─► ProcessQuestions, one for each process that is started
//	                         │            │ questions, in their order, each closed before the process has exited
//	                         ▼            ▼
//	                    the client of a session, whichever is attached
//
// A question is a [judge.Question], whether about a start or about a program that a process
// executes. All questions go one way: [ProcessQuestions.decide] asks the client and changes
// nothing, [ProcessQuestions.conclude] remembers accepted commands, tells the operator
// ([Desk].Note), and tells the client.
//
// [LooksDenied] guesses afterwards whether the sandbox stopped a process.
package approval
