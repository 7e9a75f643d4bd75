// Package execpolicy decides which commands may run: by the rules of an operator and of a client,
// and by the policy's default for commands without a rule.
//
// A [Policy] is a value. [Policy.Start] judges a command before its process is started; the command
// may be a shell with a script. [Policy.Exec] judges each program that the process then executes.
// Both return a [Verdict]: allow, prompt or forbidden, with the rules that matched and a reason to
// show. They run nothing, look at no file, and take some microseconds.
//
//	rules, err := Load("/etc/agent/rules")
//	policy := &Policy{Rules: rules, Unmatched: rule.Prompt}
//	verdict := policy.Start([]string{"bash", "-lc", "git status && rm x"}, find)
//
// [Policy.With] adds the policy of a client. The stricter decision holds, so a client can tighten
// the policy and never loosen it.
//
// [AppendPacked] and [ReadPacked] carry a policy to another process of this program.
//
// Rules about names are a guard rail, not a boundary, because a copy of a program has another name,
// and an interpreter does what its script says. The sandbox is the boundary
// (docs/protocol/execpolicy.md 8.5).
package execpolicy
