package console

import "errors"

// errLeft says that the user has left the console by ~. .
var errLeft = errors.New("ended by ~. at the terminal")

const (
	escapesHelp     = "at the start of a line: ~. leaves and ends the command, ~~ sends a ~ to the command, ~? prints this help"
	escapesHelpKept = "at the start of a line: ~. leaves and keeps the command running, ~~ sends a ~ to the command, ~? prints this help"
)

// asked is the wish of an escape that the user types.
type asked int

const (
	nothing asked = iota
	leave
	list
)

// escapes finds input for the console among input for the command: as in ssh(1), a ~ at the start
// of a line and the letter after it. The zero value is at the start of a line.
type escapes struct {
	within bool // a line, not at its start
	tilde  bool // it came last, at the start of a line, and was kept back
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
