// Package refusals is the one home of what a sandbox has refused a command: what was tried, which layer or
// rule refused it, how often, and what would have to be allowed. A model that reads such a line can ask
// for the right thing.
//
//	supervisor ── Log.Add ──► a file in memory ──► Read ─┐
//	proxy, rules, limits ──────────────────── Log.Add ───┴─► Lines, metrics, the client
//
// A [Log] has only what is known to have been refused. Where the kernel enforces a policy by itself, it
// tells nobody what it refuses. For a command that fails there, [Limits] says what the policy allows.
//
// Everything is bounded, because a command decides how much it tries. Linux only.
package refusals
