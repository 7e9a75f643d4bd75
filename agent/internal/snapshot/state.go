package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/procs"
)

// Bounds of a state. The bound of the environment is that of the reference. The code is passed to a
// shell in its environment, for which a kernel usually allows 2 MiB.
const (
	maxCode    = 1 << 20   // bytes
	maxEnviron = 512 << 10 // bytes
	maxPassed  = 7 << 18   // bytes of code, environment and command together

	chunk = 120_000 // bytes of code in one variable; the kernel allows 128 KiB
)

// variable is the prefix of the names of the variables that hold the code. A number follows it.
const variable = "AGENT_SHELL_SNAPSHOT_"

// A State is the state of a shell after its startup files. It is immutable, but for Undo.
type State struct {
	kind    kind
	code    string
	environ []string // sorted
}

// size returns the approximate memory of a state in bytes.
func (s *State) size() int64 {
	n := len(s.code)
	for _, record := range s.environ {
		n += len(record) + 16 // the header of the string
	}
	return int64(n)
}

// errDiffers is the error if the two printed copies of the state differ.
var errDiffers = errors.New("the state was printed twice and differs: something else has printed too")

// errGarbled is the error if the printed variables are invalid or incomplete.
var errGarbled = errors.New("the variables were printed in another way than they should")

// parse reads the output between the first mark and the last. inherited is the environment that the
// shell had. Its records are kept if shells do not treat their names as variables.
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
		return nil, errGarbled // every shell has exported variables
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

// Undo reverts changes to the environment of the capturing process that other processes must not
// see: each gets its own addresses of a proxy, placeholders for credentials, and variables of its
// request. It puts back the values of asked unless startup files have changed the given ones. The
// caller is the only one who knows the state yet.
func (s *State) Undo(given, asked []string) {
	own := map[string]string{} // the requested record for each given record
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

// isVariable reports whether a shell treats a name as the name of a variable.
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

// isOwn reports whether a variable describes only the shell that has it.
func isOwn(name string) bool {
	switch name {
	case "_", "PWD", "OLDPWD", "SHELLOPTS", "BASHOPTS":
		return true
	}
	return strings.HasPrefix(name, variable)
}

// Apply returns the command line and the environment of a shell that restores the state and then
// runs argv, which is SHELL -lc COMMAND ARGUMENT... The captured environment passes the policy of
// the request like the agent's own environment. The policy also removes variables that no child may
// get. overlay is applied last. ok is false if the command line and the environment are too large
// together.
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
			total += len(text) + 1 + 8 // a NUL and a pointer for each string
		}
	}
	return restored, env, total <= maxPassed
}
