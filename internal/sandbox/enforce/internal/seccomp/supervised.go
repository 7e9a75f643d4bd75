package seccomp

import (
	"slices"

	"github.com/execagent/execagent/internal/sandbox/calls"
	"github.com/execagent/execagent/sandbox"
)

const prSetDumpable = 4

// supervised is for processes whose calls a supervisor does, at a level, without
// the network or with it (supervised.md 5). Package calls lists the calls of the supervisor.
// The other rules refuse calls that no policy allows.
func supervised(level sandbox.Level, online bool) []Rule {
	var rules []Rule
	if online {
		rules = sockets() // these come first, so that the supervisor is not asked about calls that they refuse
	}
	rules = append(rules, left(level, func(c calls.Call) bool { return !c.Unscoped && !c.Held && (online || !c.Online) })...)
	if online {
		rules = append(rules, personality(addrNoRandomize)...)
		if level > sandbox.LevelWrites {
			// A process that can write to the memory of another process could change the
			// arguments of its execve after the supervisor has read them.
			rules = append(rules, Rule{Calls: []string{"process_vm_readv", "process_vm_writev", "ptrace"}, Action: Errno(eperm)})
		}
	} else {
		rules = append(rules, network()...)
		rules = append(rules, personality()...)
	}
	return append(rules, everySupervised()...)
}

// supervisedSockets is supervised, without the network, for processes that may connect to named UNIX
// sockets. The supervisor makes every single socket and connects it.
func supervisedSockets(level sandbox.Level) []Rule {
	var rules []Rule
	for _, kind := range []uint64{sockStream, sockSeqpaket} {
		rules = append(rules, Rule{Calls: []string{"socket"}, Action: Notify, When: []Cond{int32Is(0, afUnix), {1, sockTypeMask, kind}}})
	}
	return slices.Concat(rules, unixPairs(), left(level, func(c calls.Call) bool {
		return !c.Unscoped && !c.Held && (!c.Online || c.Name == "connect")
	}), connectedOnly(), aside(), personality(), everySupervised())
}

// supervisedManaged is supervised, for processes that may connect to their proxy and to
// nothing else (network.md 9). The supervisor makes every socket and connects it. No socket
// names a peer with each message, and none listens at an IP address. So the supervisor has
// no messages to judge.
//
// With held the supervisor holds connections, and the processes have sockets for questions about
// names. These look like sockets for datagrams, but are pairs of UNIX sockets, so whatever message
// is sent, it leads to the resolver (transparent.md 2).
func supervisedManaged(level sandbox.Level, held bool) []Rule {
	const ipprotoTCP, ipprotoIP, ipOptions = 6, 0, 4
	var rules []Rule
	online := []string{"connect", "bind", "listen"}
	if held {
		online = append(online, "sendto", "sendmsg", "sendmmsg")
		rules = append(noMultipath(), questions()...)
	}
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
		// The options of IP can name hosts that a packet must pass through.
		Rule{Calls: []string{"setsockopt"}, Action: Errno(eperm), When: []Cond{int32Is(1, ipprotoIP), int32Is(2, ipOptions)}},
		Rule{Calls: slices.Concat(tracing, ioUring, bypasses), Action: Errno(eperm)},
		interfaces())
	rules = append(rules, fastOpen()...)
	rules = append(rules, left(level, func(c calls.Call) bool {
		return !c.Unscoped && !c.Held && (!c.Online || slices.Contains(online, c.Name))
	})...)
	if held {
		rules = append(rules, peers()...)
	}
	return slices.Concat(rules, personality(), everySupervised())
}

// questions leaves sockets for datagrams to the supervisor.
func questions() []Rule {
	const ipprotoUDP = 17
	var rules []Rule
	for _, family := range []uint32{afInet, afInet6} {
		for _, protocol := range []uint32{0, ipprotoUDP} {
			rules = append(rules, Rule{Calls: []string{"socket"}, Action: Notify, When: []Cond{
				int32Is(0, family), {1, sockTypeMask, sockDgram}, int32Is(2, protocol),
			}})
		}
	}
	return rules
}

// peers leaves calls to the supervisor that would show what the sockets really are: who their peer
// is, who sent a message, and which protocol they have options of.
func peers() []Rule {
	const ipprotoIP, ipprotoUDP, ipprotoIPv6 = 0, 17, 41
	rules := []Rule{
		{Calls: []string{"getpeername", "getsockname", "recvmsg", "recvmmsg"}, Action: Notify},
		{Calls: []string{"getsockopt"}, Action: Notify, When: []Cond{int32Is(1, solSocket), int32Is(2, soError)}},
		{Calls: []string{"setsockopt"}, Action: Notify, When: []Cond{int32Is(1, solSocket), int32Is(2, soReuseport)}},
		{Calls: []string{"recvfrom"}, Action: Allow, When: []Cond{{4, 0xffffffff_ffffffff, 0}}},
		{Calls: []string{"recvfrom"}, Action: Notify},
	}
	for _, level := range []uint32{ipprotoIP, ipprotoUDP, ipprotoIPv6} {
		rules = append(rules, Rule{Calls: []string{"setsockopt"}, Action: Notify, When: []Cond{int32Is(1, level)}})
	}
	return rules
}

// unscoped is supervised, without the network, for processes whose Landlock domain
// keeps no signals inside. The supervisor sends the signals of system calls. The kernel also
// sends signals for events of a descriptor. These are refused, because the process that
// receives them may be any process of the user.
func unscoped(level sandbox.Level) []Rule {
	const (
		fSetfl, fSetown, fSetownEx     = 4, 8, 15
		fioasync, fiosetown, siocspgrp = 0x5452, 0x8901, 0x8902
		oAsync                         = 0o20000
	)
	rules := left(level, func(c calls.Call) bool { return !c.Online && !c.Held })
	rules = append(rules,
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetown)}},
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetownEx)}},
		Rule{Calls: []string{"fcntl"}, Action: Errno(eperm), When: []Cond{int32Is(1, fSetfl), {2, oAsync, oAsync}}})
	for _, request := range []uint32{fioasync, fiosetown, siocspgrp} {
		rules = append(rules, Rule{Calls: []string{"ioctl"}, Action: Errno(eperm), When: []Cond{int32Is(1, request)}})
	}
	return slices.Concat(rules, network(), personality(), everySupervised())
}

// everySupervised has the rules for all processes whose calls a supervisor does.
func everySupervised() []Rule {
	return slices.Concat(common(), fileRequests(), systemV(), []Rule{
		// The supervisor has to be able to read the memory of every process. So a program
		// that makes itself non-dumpable gets success, but the call does nothing.
		{Calls: []string{"prctl"}, Action: Errno(0), When: []Cond{int32Is(0, prSetDumpable)}},
	})
}

// left returns the rules for the calls whose row of package calls matches row. They leave
// these calls to the supervisor.
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
