package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Habits map words of other programs to the words of this program.
type Habits struct {
	// Commands maps a word, after the commands above it, to the nearest command below those
	// commands.
	Commands map[string]string
	// Flags maps a flag to the flags that the user may mean. The first one that the command has is
	// used.
	Flags map[string][]string
	// Advice maps "COMMAND FLAG" to the end of the error of an unknown flag, for flags without a
	// similar flag.
	Advice map[string]string
	// Places are flags with a value that may stand before the command.
	Places []string
}

// UnknownFlag returns an error text: the command does not have the flag, and which flag may be
// meant.
func (c *Command) UnknownFlag(word string) string {
	fields := c.Of(c.New())
	known := fields.names()
	if c.Default {
		known = append(known, c.program.own().names()...)
	} else {
		known = append(known, "--help")
	}
	name, _, _ := strings.Cut(word, "=")
	near := ""
	if strings.HasPrefix(name, "--") {
		near = Meant(nearest(name, known))
	}
	for _, habit := range c.program.Habits.Flags[name] {
		flag, _, _ := strings.Cut(habit, " ")
		short := func(f Field) bool { return !f.Hidden && "-"+f.Short == flag }
		if near == "" && (slices.Contains(known, flag) || slices.ContainsFunc(fields, short)) {
			near = Meant(habit)
		}
	}
	return fmt.Sprintf("unknown flag %s%s", name, cmp.Or(near, c.program.Habits.Advice[c.Path+" "+name]))
}

// Here rewrites a line from the form of other programs to the form that this program reads.
func (p *App) Here(args []string) ([]string, error) {
	return p.withoutHelp(p.dashesBehind(p.commandFirst(args)))
}

// dashesBehind moves a -- that stands before a command, where it separates nothing, behind the
// command. It is still true that no word after it is a flag. Files are then read for the command
// that runs.
func (p *App) dashesBehind(args []string) []string {
	c, at, n := p.Root(), -1, 0
	for ; n < len(args); n++ {
		if args[n] == "--" && at < 0 && len(c.Below()) > 0 {
			at = n
			continue
		}
		child := c.child(args[n])
		if child == nil {
			break
		}
		c = child
	}
	if at < 0 || n == at+1 {
		return args
	}
	moved := slices.Concat(args[:at], args[at+1:n])
	if n == len(args) || args[n] != "--" {
		moved = append(moved, "--")
	}
	return append(moved, args[n:]...)
}

// commandFirst moves a command before the flags that name its place.
func (p *App) commandFirst(args []string) []string {
	n := 0
	for n < len(args) {
		name, _, inline := strings.Cut(args[n], "=")
		if !slices.Contains(p.Habits.Places, name) {
			break
		}
		n++
		if !inline {
			n++
		}
	}
	if n == 0 || n >= len(args) || strings.HasPrefix(args[n], "-") {
		return args
	}
	words := 1
	if c := p.Root().child(args[n]); n+1 < len(args) && (c == nil || len(c.Below()) > 0) {
		words++ // such as context list
	}
	return slices.Concat(args[n:n+words], args[:n], args[n+words:])
}

// withoutHelp replaces an h among several letters behind one dash, where it would mean help,
// because a user who types ls -lh wants sizes for people. For commands without such a flag, it
// returns an error.
func (p *App) withoutHelp(args []string) ([]string, error) {
	c, rest, err := p.command(args)
	letters := func(word string) bool {
		return len(word) > 2 && word[0] == '-' && word[1] != '-' && strings.Contains(word, "h")
	}
	if err != nil || len(c.Below()) > 0 || !slices.ContainsFunc(rest, letters) {
		return args, nil // Read reports the mistake
	}
	fields := c.Of(c.New())
	program := slices.ContainsFunc(fields, func(f Field) bool { return f.Passthrough })
	for i := len(args) - len(rest); i < len(args); i++ {
		word := args[i]
		if word == "--" || program && !strings.HasPrefix(word, "-") {
			break
		}
		if !letters(word) {
			continue
		}
		for letter := range strings.SplitSeq(word[1:], "") {
			if letter == "h" {
				if fields.Find("--human-readable") == nil {
					return args, UsageError("unknown flag -h; write -h alone for help")
				}
				return slices.Concat(args[:i], []string{strings.ReplaceAll(word, "h", ""), "--human-readable"}, args[i+1:]), nil
			}
			if f := fields.Find("-" + letter); f == nil || !f.Boolean() {
				break // the letter is wrong, or its value follows
			}
		}
	}
	return args, nil
}
