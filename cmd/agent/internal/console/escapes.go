package console

import "errors"

// errLeft says that the user has left the console by ~. .
var errLeft = errors.New("ended by ~. at the terminal")

const (
	escapesHelp     = "at the start of a line: ~. leaves and ends the command, ~~ sends a ~ to the command, ~? prints this help"
	escapesHelpKept = "at the start of a line: ~. leaves and keeps the command running, ~~ sends a ~ to the command, ~? prints this help"
)

// asked is the action that the user requests by an escape or by the detach keys.
type asked int

const (
	nothing asked = iota
	leave
	list
)

// escapes finds the console's escape sequences in the user's input. As in ssh(1), an escape
// sequence is a ~ at the start of a line and the character after it. The zero value is at the start
// of a line.
type escapes struct {
	within bool // the input is within a line, not at its start
	tilde  bool // the last byte was a ~ at the start of a line, and is held back
}

// filter returns the input for the command. Input after leave is dropped.
func (e *escapes) filter(typed []byte) (rest []byte, a asked) {
	rest = make([]byte, 0, len(typed)+1)
	for _, b := range typed {
		switch {
		case e.tilde && b == '.':
			return nil, leave
		case e.tilde && b == '?':
			e.tilde, a = false, list
			continue
		case e.tilde:
			e.tilde = false
			rest = append(rest, '~')
			if b == '~' {
				e.within = true
				continue
			}
		case !e.within && b == '~':
			e.tilde = true
			continue
		}
		rest = append(rest, b)
		e.within = b != '\r' && b != '\n'
	}
	return rest, a
}
