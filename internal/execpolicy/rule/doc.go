// Package rule has the rules about commands as values, and finds the rules that match a command. It
// reads no files and does not parse scripts.
//
// A [Rule] matches the beginning of a command, word by word:
//
//	var set rule.Set
//	set.Add(rule.New([][]string{{"git"}, {"push", "fetch"}}, rule.Prompt))
//	set.Match([]string{"git", "push", "origin"}) // [git push] prompt
//
// All rules that match count, regardless of their order, and the strictest decides: neither a
// longer nor a later rule has priority (docs/protocol/execpolicy.md 3).
package rule
