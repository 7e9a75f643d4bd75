package confine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestRoles: the arguments and the config decide what an init does. Each of the 96 combinations
// of what decideRole looks at has exactly one row.
func TestRoles(t *testing.T) {
	t.Parallel()
	words := map[string]int{"no": 0, "yes": 1, "any": 2, "first": 0, "apart": 1, "inner": 2}
	roles := map[string]role{
		"command": roleCommand, "limited": roleLimited, "connect": roleConnect, "outer": roleOuter, "apart": roleApart, "become": roleBecome, "connect only": roleConnectOnly,
	}
	arguments, rows := [][]string{{"agent", Arg}, {"agent", Arg, apart, ""}, {"agent", Arg, inner, ""}}, rig.Rows(t, "testdata/roles.txt", "roles", 7)
	for n := range len(arguments) << 5 {
		is := [6]int{n >> 5, n & 1, n >> 1 & 1, n >> 2 & 1, n >> 3 & 1, n >> 4 & 1}
		c := &config{Command: Command{Policy: &sandbox.Policy{Confined: is[1] == 1}}}
		if is[2] == 1 {
			c.Endpoint = Endpoint{Network: "tcp", Target: "host:1"}
		}
		if is[3] == 1 {
			c.Rules = []byte("rules")
		}
		if is[4] == 1 {
			c.Backend.Layers = sandbox.LayersOf(sandbox.Supervised)
		}
		if is[5] == 1 {
			c.Limits.Processes = 1
		}
		var want []role
		for _, row := range rows {
			covers := true
			for i, v := range is {
				covers = covers && (row[i] == "any" || words[row[i]] == v)
			}
			if covers {
				want = append(want, roles[row[6]])
			}
		}
		got, of, err := decideRole(arguments[is[0]], func([]string) (*config, error) { return c, nil })
		rig.Is(t, fmt.Sprint([]role{got}, of == c, err), fmt.Sprint(want, true, nil), "%v", is)
	}
}

// TestRoleBind: a process that binds a name opens no config, and so closes and reads nothing. With
// any other arguments the config is opened first.
func TestRoleBind(t *testing.T) {
	t.Parallel()
	opened := errors.New("the config was opened")
	open := func([]string) (*config, error) { return nil, opened }
	bind := []string{"agent", Arg, "bind", "22", "0100", ""}
	r, c, err := decideRole(bind, open)
	rig.Is(t, fmt.Sprint(r, c == nil, err), fmt.Sprint(roleBind, true, nil), "%q", bind)
	for _, args := range [][]string{
		{"agent", Arg}, {"agent", Arg, refusal, "why"}, {"agent", Arg, "why"}, {"agent", Arg, apart, ""},
		{"agent", Arg, "bind"}, {"agent", Arg, "bind", "22", "0100", "more"},
	} {
		_, _, err := decideRole(args, open)
		rig.Is(t, err, opened, "%q", args)
	}
}
