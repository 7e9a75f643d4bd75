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
	const (
		no, yes, any  = 0, 1, 2
		first, second = 0, 1 // rows of arguments
		inside        = 2
	)
	arguments := [][]string{{"agent", Arg}, {"agent", Arg, apart, ""}, {"agent", Arg, inner, ""}}
	rows := []struct {
		when [6]int // arguments; confined files, an endpoint, rules, a supervisor, limits
		want role
	}{
		{[6]int{first, no, yes, any, any, any}, roleConnectOnly},
		{[6]int{second, no, yes, any, any, any}, roleConnectOnly},
		{[6]int{inside, no, yes, any, any, any}, roleConnectOnly},
		{[6]int{first, no, no, no, any, any}, roleBecome},
		{[6]int{second, no, no, no, any, any}, roleBecome},
		{[6]int{inside, no, no, no, any, any}, roleBecome},

		{[6]int{second, yes, any, any, any, any}, roleApart},
		{[6]int{second, no, no, yes, any, any}, roleApart},

		{[6]int{first, yes, any, any, yes, any}, roleOuter},
		{[6]int{first, no, no, yes, yes, any}, roleOuter},

		{[6]int{first, yes, yes, any, no, any}, roleConnect},
		{[6]int{first, yes, no, any, no, yes}, roleLimited},
		{[6]int{first, yes, no, any, no, no}, roleCommand},
		{[6]int{first, no, no, yes, no, yes}, roleLimited},
		{[6]int{first, no, no, yes, no, no}, roleCommand},

		{[6]int{inside, yes, yes, any, any, any}, roleConnect},
		{[6]int{inside, yes, no, any, any, yes}, roleLimited},
		{[6]int{inside, yes, no, any, any, no}, roleCommand},
		{[6]int{inside, no, no, yes, any, yes}, roleLimited},
		{[6]int{inside, no, no, yes, any, no}, roleCommand},
	}
	for n := range len(arguments) << 5 {
		is := [6]int{n >> 5, n & 1, n >> 1 & 1, n >> 2 & 1, n >> 3 & 1, n >> 4 & 1}
		c := &config{Command: Command{Policy: &sandbox.Policy{Confined: is[1] == yes}}}
		if is[2] == yes {
			c.Endpoint = Endpoint{Network: "tcp", Target: "host:1"}
		}
		if is[3] == yes {
			c.Rules = []byte("rules")
		}
		if is[4] == yes {
			c.Backend.Layers = sandbox.LayersOf(sandbox.Supervised)
		}
		if is[5] == yes {
			c.Limits.Processes = 1
		}
		var want []role
		for _, row := range rows {
			covers := row.when[0] == is[0]
			for i, v := range row.when[1:] {
				covers = covers && (v == any || v == is[1+i])
			}
			if covers {
				want = append(want, row.want)
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
