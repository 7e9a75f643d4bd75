package seccomp

import (
	"slices"

	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/sandbox"
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
	rules = append(rules, left(level, func(c calls.Call) bool { return !c.Unscoped && (online || !c.Online) })...)
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
	return append(rules, everySupervised()...)
}

// supervisedManaged is supervised, for processes that may connect to their proxy and to
// nothing else (network.md 9). The supervisor makes every socket and connects it. There
// are none that name a peer with each message, and none that listens at an IP address,
// so it has no messages to judge.
func supervisedManaged(level sandbox.Level) []Rule {
	const ipprotoTCP, ipprotoIP, ipOptions = 6, 0, 4
	var rules []Rule
	for _, family := range []uint32{afInet, afInet6} {
		for _, protocol := range []uint32{0, ipprotoTCP} {
			rules = append(rules, Rule{Calls: []string{"socket"}, Action: Notify, When: []Cond{
				int32Is(0, family), {1, sockTypeMask, sockStream}, int32Is(2, protocol),
			}})
		}
	}
	for _, kind := range []uint64{sockStream, sockSeqpaket} {
		rules = append(rules, Rule{Calls: []string{"socket"}, Action: Notify, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, kind}}})
	}
	rules = append(rules, unixPairs()...)
	rules = append(rules,
		// The options of IP name hosts that a packet shall pass through.
		Rule{Calls: []string{"setsockopt"}, Action: Errno(eperm), When: []Cond{int32Is(1, ipprotoIP), int32Is(2, ipOptions)}},
		Rule{Calls: slices.Concat(tracing, ioUring, bypasses), Action: Errno(eperm)})
	rules = append(rules, fastOpen()...)
	rules = append(rules, left(level, func(c calls.Call) bool {
		return !c.Unscoped && (!c.Online || slices.Contains([]string{"connect", "bind", "listen"}, c.Name))
	})...)
	return slices.Concat(rules, personality(), everySupervised())
}

// unscoped is supervised, without the network, for processes whose Landlock domain
// keeps no signals inside. The supervisor sends what calls send. What the kernel
// itself sends when something happens on a descriptor is refused: its addressee
// may be any process of the user.
func unscoped(level sandbox.Level) []Rule {
	const (
		fSetfl, fSetown, fSetownEx     = 4, 8, 15
		fioasync, fiosetown, siocspgrp = 0x5452, 0x8901, 0x8902
		oAsync                         = 0o20000
	)
	rules := left(level, func(c calls.Call) bool { return !c.Online })
	rules = append(rules,
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetown)}},
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetownEx)}},
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetfl), {2, oAsync, oAsync}}})
	for _, request := range []uint32{fioasync, fiosetown, siocspgrp} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, request)}})
	}
	return slices.Concat(rules, network(), personality(), everySupervised())
}

// everySupervised are the rules for all processes whose calls a supervisor does.
func everySupervised() []Rule {
	return slices.Concat(common(), fileRequests(), systemV(), []Rule{
		// The supervisor has to be able to read the memory of every process. A
		// program that wants to hide its own is told that it has done so.
		{Calls: []string{"prctl"}, Action: Errno(0), When: []Cond{int32Is(0, prSetDumpable)}},
	})
}

// left returns the rules for the calls that package calls has such a row for.
func left(level sandbox.Level, row func(calls.Call) bool) []Rule {
	var rules []Rule
	for _, call := range calls.Calls() {
		t := call.In(level)
		if !row(call) || t.Action == calls.Kernel {
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
