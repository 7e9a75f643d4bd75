package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/procs"
)

// Bounds of a state. That of the environment is the reference's; what is kept as code has
// to pass to a shell in its environment, of which a kernel takes 2 MiB as a rule.
const (
	maxCode    = 1 << 20   // bytes
	maxEnviron = 512 << 10 // bytes
	maxPassed  = 7 << 18   // bytes of code, environment and command together

	chunk = 120_000 // bytes of code in one variable; the kernel takes 128 KiB
)

// variable is the name of the variables that the code is in, before their numbers.
const variable = "AGENT_SHELL_SNAPSHOT_"

// State is what startup files have left. It does not change.
type State struct {
	kind    kind
	code    string
	environ []string // sorted
}

// size is about how many bytes a state takes.
func (s *State) size() int64 {
	n := len(s.code)
	for _, record := range s.environ {
		n += len(record) + 16 // the header of the string
	}
	return int64(n)
}

// errDiffers says that the two states that a capture has printed are not the same.
var errDiffers = errors.New("the state was printed twice and differs: something else has printed too")

// errGarbled says that what was printed for the variables is none, or not all of them.
var errGarbled = errors.New("the variables were printed in another way than they should")

// parse reads what is between the first mark and the last one. inherited is the environment
// that the shell had: names in it that no shell takes for a variable are kept.
func parse(k kind, output, mark string, inherited []string) (*State, error) {
	copies := strings.Split(output, mark+"\x00")
	if len(copies) != 2 || copies[0] != copies[1] {
		return nil, errDiffers
	}
	records := strings.Split(strings.TrimSuffix(copies[0], "\x00"), "\x00")
	if len(records) < k.parts {
		return nil, fmt.Errorf("%d parts of %d", len(records), k.parts)
	}
	s := &State{kind: k, code: k.code(records[:k.parts])}
	size := 0
	keep := func(record string) {
		s.environ = append(s.environ, record)
		size += len(record) + 1
	}
	for _, record := range records[k.parts:] {
		name, _, ok := strings.Cut(record, "=")
		switch {
		case !ok || strings.Contains(name, "\n"):
			return nil, errGarbled
		case isVariable(name) && !isOwn(name):
			keep(record)
		}
	}
	if len(s.environ) == 0 {
		return nil, errGarbled // every shell has some
	}
	for _, record := range inherited {
		if name, _, _ := strings.Cut(record, "="); !isVariable(name) && !strings.HasPrefix(name, "BASH_FUNC_") {
			keep(record)
		}
	}
	switch {
	case len(s.code) > maxCode:
		return nil, fmt.Errorf("functions, aliases and options of %d bytes, more than %d", len(s.code), maxCode)
	case size > maxEnviron:
		return nil, fmt.Errorf("an environment of %d bytes, more than %d", size, maxEnviron)
	}
	slices.Sort(s.environ)
	return s, nil
}

// undo takes out of a state what was given to the process that printed it in place of the
// variables that were asked for, where startup files have not changed it: the addresses of its
// proxy, and placeholders for what it must not see. Each process is given its own.
func (s *State) undo(given, asked []string) {
	own := map[string]string{} // what was asked for in the place of a record
	for _, record := range given {
		if !slices.Contains(asked, record) {
			own[record] = ""
		}
	}
	if len(own) == 0 {
		return
	}
	for record := range own {
		name, _, _ := strings.Cut(record, "=")
		for _, a := range asked {
			if strings.HasPrefix(a, name+"=") {
				own[record] = a
			}
		}
	}
	environ := s.environ[:0]
	for _, record := range s.environ {
		if a, ok := own[record]; !ok {
			environ = append(environ, record)
		} else if a != "" {
			environ = append(environ, a)
		}
	}
	s.environ = environ
}

// isVariable reports whether a shell takes a name for that of a variable.
func isVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// isOwn reports whether a variable is about the one shell that has it.
func isOwn(name string) bool {
	switch name {
	case "_", "PWD", "OLDPWD", "SHELLOPTS", "BASHOPTS":
		return true
	}
	return strings.HasPrefix(name, variable)
}

// Apply returns the command line and the environment of a shell that restores the state and
// then does what argv, SHELL -lc COMMAND ARGUMENT..., asks for. The captured environment
// passes the policy of the request as if it were the agent's own, which also takes out what
// must reach no child; overlay comes last. ok is false where they are too large together.
func (s *State) Apply(argv []string, policy *procs.EnvPolicy, overlay map[string]string) (_, env []string, ok bool) {
	all := procs.EnvPolicy{IgnoreDefaultExcludes: true}
	if policy != nil {
		all = *policy
	}
	all.Inherit = procs.InheritAll
	if all.Check(s.environ, overlay) != nil {
		return nil, nil, false
	}
	env = all.Environ(s.environ, overlay)

	var unset, code strings.Builder
	for part := range slices.Chunk([]byte(s.code), chunk) {
		name := variable + strconv.Itoa(len(env))
		env = append(env, name+"="+string(part))
		unset.WriteString(" " + name)
		code.WriteString("${" + name + "}")
	}
	prelude := s.kind.command + `eval "unset` + unset.String() + "\n" + code.String() + `
:" || echo 'failed to restore shell snapshot' >&2
`
	command := argv[2]
	if s.kind.whole {
		command = "eval '" + strings.ReplaceAll(command, "'", `'\''`) + "'"
	}
	restored := slices.Clone(argv)
	restored[1], restored[2] = s.kind.restore, prelude+command
	total := 0
	for _, list := range [][]string{restored, env} {
		for _, text := range list {
			total += len(text) + 1 + 8 // its NUL, and the pointer to it
		}
	}
	return restored, env, total <= maxPassed
}
