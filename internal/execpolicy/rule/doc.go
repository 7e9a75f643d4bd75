// Package rule has the rules about commands as values, and finds the rules that match a command. It
// reads no files and knows no shell.
//
// A [Rule] matches the beginning of a command, word by word:
//
//	var set rule.Set
//	set.Add(rule.New([][]string{{"git"}, {"push", "fetch"}}, rule.Prompt))
//	set.Match([]string{"git", "push", "origin"}) // [git push] prompt
//
// All rules that match count, wherever they stand, and the strictest decides: neither a longer nor
// a later rule wins against another (docs/protocol/execpolicy.md 3).
package rule
