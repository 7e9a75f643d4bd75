// Package approval applies the policies about commands to what a client starts: that of the
// operator, and that of the client in the request (execpolicy.md 8). The client is asked about
// what they leave to it.
//
//	Desk.Decide ─► Plan ─ Desk.Open ─► ProcessQuestions, one for each process that is started
//	                         │            │ questions, in their order, each closed before the process has exited
//	                         ▼            ▼
//	                    the client of a session, whichever is attached
//
// A question about a command is a [judge.Question], of a start and of what a process executes, and
// goes one way: [ProcessQuestions.decide] asks the client and changes nothing, [ProcessQuestions.conclude] remembers
// what was accepted, tells the operator ([Desk].Note), and tells the client.
//
// [LooksDenied] guesses afterwards whether the sandbox stopped a process.
package approval
