//go:build cgo && filtergen

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/execagent/execagent/internal/sandbox/enforce/internal/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// target is an architecture that programs are compiled for.
type target struct {
	name  string
	arch  libseccomp.ScmpArch
	audit uint32 // the arch of struct seccomp_data
}

var (
	amd64 = target{name: "amd64", arch: libseccomp.ArchAMD64, audit: unix.AUDIT_ARCH_X86_64}
	arm64 = target{name: "arm64", arch: libseccomp.ArchARM64, audit: unix.AUDIT_ARCH_AARCH64}
)

// number returns the number of a call on the target. ok is false for a call that
// the target does not have according to seccomp.AMD64Only. Any other unknown call is an
// error.
func (t target) number(call string) (number uint32, ok bool, err error) {
	if number, ok := seccomp.Unified[call]; ok {
		return number, true, nil
	}
	found, err := libseccomp.GetSyscallFromNameByArch(call, t.arch)
	if err != nil {
		return 0, false, fmt.Errorf("finding system call %s: %w", call, err)
	}
	if found >= 0 {
		return uint32(found), true, nil
	}
	// libseccomp has negative numbers for calls that only other architectures have.
	if !seccomp.AMD64Only[call] || t.name == amd64.name {
		return 0, false, fmt.Errorf("%s has no system call %s", t.name, call)
	}
	return 0, false, nil
}

// call has the rules of the table for one call of the target.
type call struct {
	name   string
	number uint32
	rules  []seccomp.Rule // if the last one has conditions, the default follows it
}

// compile returns a program of two parts. The first part is ours. It checks the
// architecture and the number, and decides about the calls whose rules libseccomp cannot
// express: the order of the rules matters, or libseccomp does not know the call. The
// second part comes from libseccomp: a binary tree of all other calls.
func compile(table seccomp.Table, target target) ([]byte, error) {
	calls, err := collect(table, target)
	if err != nil {
		return nil, err
	}
	filter, err := libseccomp.NewFilter(action(table.Default))
	if err != nil {
		return nil, fmt.Errorf("making a filter: %w", err)
	}
	defer filter.Release()
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("finding the architecture: %w", err)
	}
	if native != target.arch {
		if err := filter.AddArch(target.arch); err != nil {
			return nil, fmt.Errorf("adding an architecture: %w", err)
		}
		if err := filter.RemoveArch(native); err != nil {
			return nil, fmt.Errorf("removing an architecture: %w", err)
		}
	}
	if err := filter.SetBadArchAction(libseccomp.ActKillProcess); err != nil {
		return nil, fmt.Errorf("setting the action for architectures: %w", err)
	}
	if err := filter.SetOptimize(2); err != nil {
		return nil, fmt.Errorf("asking for a binary tree: %w", err)
	}

	prologue := gates(target.audit)
	for _, c := range calls {
		if plain := len(c.rules) == 1 && len(c.rules[0].When) == 0; plain && c.number < seccomp.FirstUnified {
			if c.rules[0].Action == table.Default {
				continue
			}
			// The library wants this machine's number and translates it.
			number, err := libseccomp.GetSyscallFromName(c.name)
			if err != nil {
				return nil, fmt.Errorf("finding system call %s: %w", c.name, err)
			}
			if err := filter.AddRuleExact(number, action(c.rules[0].Action)); err != nil {
				return nil, fmt.Errorf("adding a rule for %s: %w", c.name, err)
			}
			continue
		}
		prologue = append(prologue, c.block(table.Default)...)
	}
	prologue = append(prologue, newer(table.Default)...)

	body, err := export(filter)
	if err != nil {
		return nil, fmt.Errorf("exporting: %w", err)
	}
	if n := len(prologue) + len(body)/instructionSize; n > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("%d instructions are too many", n)
	}
	return append(encode(prologue), body...), nil
}

// export returns libseccomp's program. It uses a file, because libseccomp
// 2.5.4 can export only to a descriptor.
func export(filter *libseccomp.ScmpFilter) ([]byte, error) {
	file, err := os.CreateTemp("", "filtergen")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return nil, err
	}
	if err := filter.ExportBPF(file); err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(file, 0, math.MaxInt64))
}

// collect gathers the rules by call, in the order of the table.
func collect(table seccomp.Table, target target) ([]*call, error) {
	var calls []*call
	byNumber := map[uint32]*call{}
	for _, rule := range table.Rules {
		for _, name := range rule.Calls {
			number, ok, err := target.number(name)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			if number > seccomp.MaxReviewed {
				return nil, fmt.Errorf("%s has number %d, which was not reviewed", name, number)
			}
			c := byNumber[number]
			if c == nil {
				c = &call{name: name, number: number}
				byNumber[number] = c
				calls = append(calls, c)
			}
			if n := len(c.rules); n > 0 && len(c.rules[n-1].When) == 0 {
				return nil, fmt.Errorf("a rule for %s is never looked at", name)
			}
			c.rules = append(c.rules, rule)
		}
	}
	return calls, nil
}

// action returns libseccomp's value for an action.
func action(a seccomp.Action) libseccomp.ScmpAction {
	switch a {
	case seccomp.Allow:
		return libseccomp.ActAllow
	case seccomp.Kill:
		return libseccomp.ActKillProcess
	case seccomp.Notify:
		return libseccomp.ActNotify
	default:
		return libseccomp.ActErrno.SetReturnCode(int16(a & 0xffff))
	}
}

// instructionSize is the size of struct sock_filter in bytes.
const instructionSize = 8

// encode writes instructions in little endian, as both architectures have them in
// memory. libseccomp exports them in the same form on both architectures.
func encode(program []unix.SockFilter) []byte {
	raw := make([]byte, 0, len(program)*instructionSize)
	for _, i := range program {
		raw = binary.LittleEndian.AppendUint16(raw, i.Code)
		raw = append(raw, i.Jt, i.Jf)
		raw = binary.LittleEndian.AppendUint32(raw, i.K)
	}
	return raw
}
