package console

import "errors"

// errLeft is why a console ends that the user leaves by ~. .
var errLeft = errors.New("ended by ~. at the terminal")

const (
	escapesHelp     = "at the start of a line: ~. leaves and ends the command, ~~ is a ~ for the command, ~? is this"
	escapesHelpKept = "at the start of a line: ~. leaves and lets the command run on, ~~ is a ~ for the command, ~? is this"
)

// asked is what an escape of the user asks for.
type asked int

const (
	nothing asked = iota
	leave
	list
)

// escapes finds what is typed for the console and not for the command: as in ssh(1), a ~ at
// the start of a line and the letter after it. The zero value is at the start of a line.
type escapes struct {
	within bool // a line, not at its start
	tilde  bool // it came last, at the start of a line, and was kept back
}

// filter returns what is for the command. What comes after leave is dropped.
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
