package seccomp

import (
	"slices"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/calls"
)

const prSetDumpable = 4

// supervised is for processes whose calls a supervisor does, in a level, without
// the network or with it (supervised.md 5). What the supervisor does is in package
// calls; the rest refuses what no policy allows.
func supervised(level sandbox.Level, online bool) []Rule {
	var rules []Rule
	if online {
		rules = sockets() // these come first: what they refuse the supervisor is not asked about
	}
	rules = append(rules, left(level, online)...)
	if online {
		rules = append(rules, personality(addrNoRandomize)...)
		if level > sandbox.LevelWrites {
			// Who can write to the memory of another process could change the
			// arguments of its execve between the look at them and the call.
			rules = append(rules, Rule{Calls: []string{"process_vm_readv", "process_vm_writev", "ptrace"}, Action: Errno(eperm)})
		}
	} else {
		rules = append(rules, network()...)
		rules = append(rules, personality()...)
	}
	return slices.Concat(rules, common(), fileRequests(), systemV(), []Rule{
		// The supervisor has to be able to read the memory of every process. A
		// program that wants to hide its own is told that it has done so.
		{Calls: []string{"prctl"}, Action: Errno(0), When: []Cond{int32Is(0, prSetDumpable)}},
	})
}

// left returns the rules for the calls that package calls has a row for.
func left(level sandbox.Level, online bool) []Rule {
	var rules []Rule
	for _, call := range calls.Calls() {
		t := call.In(level)
		if call.Online && !online || t.Action == calls.Kernel {
			continue
		}
		names := []string{call.Name}
		for _, conds := range t.Unless {
			var when []Cond
			for _, c := range conds {
				when = append(when, Cond(c))
			}
			rules = append(rules, Rule{Calls: names, Action: Allow, When: when})
		}
		action := Notify
		if t.Action == calls.Failure {
			action = Errno(t.Errno)
		}
		rules = append(rules, Rule{Calls: names, Action: action})
	}
	return rules
}
