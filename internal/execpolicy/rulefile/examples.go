package rulefile

import (
	"errors"
	"fmt"
	"strings"

	"go.starlark.net/starlark"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// examples are the commands that a call gives with its rules. At least one rule of the call must
// match each command of match, and no rule may match a command of notMatch.
type examples struct {
	rules           rule.Set
	match, notMatch [][]string
	line, column    int
}

// examplesOf returns the examples in a list. The list may be nil.
func examplesOf(list *starlark.List) (commands [][]string, err error) {
	if list == nil {
		return nil, nil
	}
	for v := range list.Elements() {
		var command []string
		switch v := v.(type) {
		case starlark.String:
			if command, err = splitWords(string(v)); err != nil {
				return nil, err
			}
			if len(command) == 0 {
				return nil, errors.New("example cannot be an empty string")
			}
		case *starlark.List:
			for w := range v.Elements() {
				word, ok := w.(starlark.String)
				if !ok {
					return nil, fmt.Errorf("example tokens must be strings (got %s)", typeOf(w))
				}
				command = append(command, string(word))
			}
			if len(command) == 0 {
				return nil, errors.New("example cannot be an empty list")
			}
		default:
			return nil, fmt.Errorf("example must be a string or list of strings (got %s)", typeOf(v))
		}
		commands = append(commands, command)
	}
	return commands, nil
}

// tryExamples checks the examples of a file, call by call. Only the rules of the same call count,
// with the definitions of programs in earlier files and in the whole of this file.
func (e *evaluation) tryExamples() error {
	hosts := e.earlier.Hosts()
	hosts.Append(e.rules.Hosts())
	for i := range e.examples {
		own := &e.examples[i]
		own.rules.ShareHosts(hosts)
		matches := func(command []string) bool {
			return len(own.rules.MatchProgram(command, func(p string) string { return rule.Absolute(p, "/", "") })) > 0
		}
		for _, command := range own.notMatch {
			if matches(command) {
				return &Error{e.file, own.line, own.column, "expected example to not match rule: " + rule.Quote(command)}
			}
		}
		var unmatched []string
		for _, command := range own.match {
			if !matches(command) {
				unmatched = append(unmatched, rule.Quote(command))
			}
		}
		if len(unmatched) > 0 {
			return &Error{e.file, own.line, own.column, "expected every example to match at least one rule. unmatched examples: " + strings.Join(unmatched, "; ")}
		}
	}
	return nil
}

// splitWords splits an example into words like a shell, but without expansions.
func splitWords(text string) (words []string, err error) {
	var (
		word   strings.Builder
		inWord bool
		quote  byte
	)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == '\'' && c != '\'', quote == '"' && c != '"' && c != '\\':
			word.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\':
			if i++; i == len(text) {
				return nil, errSyntax
			}
			inWord = inWord || text[i] != '\n'
			switch {
			case text[i] == '\n':
			case quote == '"' && !strings.ContainsRune("$`\"\\", rune(text[i])):
				word.WriteString(text[i-1 : i+1])
			default:
				word.WriteByte(text[i])
			}
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		case c == '#' && !inWord:
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return words, nil
			}
			i += end
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, errSyntax
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

var errSyntax = errors.New("example string has invalid shell syntax")
