// Package execpolicy decides which commands may run: by the rules of an operator and of a client,
// and by what a policy says of commands without a rule.
//
// A [Policy] is a value. It is asked before a process is started ([Policy.Start]), when the command
// may be a shell with a script, and before each program that is executed below it ([Policy.Exec]).
// The answer is a [Verdict]: allow, prompt or forbidden, with the rules that matched and a reason
// to show. Asking runs nothing and looks at no file, and takes some microseconds.
//
//	rules, err := Load("/etc/agent/rules")
//	policy := &Policy{Rules: rules, Unmatched: rule.Prompt}
//	verdict := policy.Start([]string{"bash", "-lc", "git status && rm x"}, find)
//
// The policy of a client is put on top with [Policy.With]: the stricter decision holds, so that a
// client can tighten and never loosen.
//
// [AppendPacked] and [ReadPacked] carry a policy to another process of ours.
//
// Names of programs are a guard rail and no boundary: a copy of a program has another name, and an
// interpreter does what its script says. The sandbox is the boundary (docs/protocol/execpolicy.md
// 8.5).
package execpolicy
