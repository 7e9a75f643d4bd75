// Package rule has the rules about commands as values: what they say, and which of them match a
// command. It reads no files and knows no shell.
//
// A [Rule] matches the beginning of a command, word by word:
//
//	var set rule.Set
//	set.Add(rule.New([][]string{{"git"}, {"push", "fetch"}}, rule.Prompt))
//	set.Match([]string{"git", "push", "origin"}) // [git push] prompt
//
// All rules that match count, wherever they stand, and the strictest decides: a longer rule does
// not win against a shorter one, nor a later one against an earlier (docs/protocol/execpolicy.md
// 3).
package rule
