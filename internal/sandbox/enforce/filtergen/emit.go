//go:build cgo && filtergen

package main

import (
	"slices"

	"github.com/execagent/execagent/internal/sandbox/enforce/internal/seccomp"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data of linux/seccomp.h, on a little endian machine.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(a seccomp.Action) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(a)}
}

func and(mask uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}
}

// unless skips the next skip instructions if the comparison with k does not hold.
func unless(compare uint16, k uint32, skip int) unix.SockFilter {
	if skip > 0xff {
		panic("a jump over more than 255 instructions")
	}
	return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(skip)}
}

// gates returns instructions that kill the process on a call of another architecture, and
// let calls that were not reviewed fail with ENOSYS. All x32 calls are such calls. The
// instructions leave the number of the call in the accumulator.
func gates(audit uint32) []unix.SockFilter {
	return []unix.SockFilter{
		load(offsetArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: audit, Jt: 1},
		ret(seccomp.Kill),
		load(offsetNumber),
		unless(unix.BPF_JGT, seccomp.MaxReviewed, 1),
		ret(seccomp.Errno(uint16(unix.ENOSYS))),
	}
}

// block returns the instructions that decide about one call. All other calls skip
// them.
func (c *call) block(byDefault seccomp.Action) []unix.SockFilter {
	var block []unix.SockFilter
	for _, rule := range c.rules {
		block = append(block, match(rule)...)
	}
	if last := c.rules[len(c.rules)-1]; len(last.When) > 0 {
		block = append(block, ret(byDefault))
	}
	return append([]unix.SockFilter{unless(unix.BPF_JEQ, c.number, len(block))}, block...)
}

// match returns instructions that return the rule's action if all its
// conditions hold, and fall through otherwise. It builds them from the end,
// because each jump skips all instructions that follow it.
func match(rule seccomp.Rule) []unix.SockFilter {
	out := []unix.SockFilter{ret(rule.Action)}
	for _, cond := range slices.Backward(rule.When) {
		for _, half := range []struct {
			offset      uint32
			mask, value uint32
		}{
			{0, uint32(cond.Mask), uint32(cond.Value)},
			{4, uint32(cond.Mask >> 32), uint32(cond.Value >> 32)},
		} {
			if half.mask == 0 {
				continue
			}
			test := []unix.SockFilter{load(offsetArgs + 8*uint32(cond.Arg) + half.offset)}
			if half.mask != 0xffffffff {
				test = append(test, and(half.mask))
			}
			test = append(test, unless(unix.BPF_JEQ, half.value, len(out)))
			out = append(test, out...)
		}
	}
	return out
}

// newer returns instructions that return the default for calls that libseccomp does not
// know, before libseccomp's part sees these calls.
func newer(byDefault seccomp.Action) []unix.SockFilter {
	return []unix.SockFilter{
		unless(unix.BPF_JGE, seccomp.FirstUnified, 1),
		ret(byDefault),
	}
}
