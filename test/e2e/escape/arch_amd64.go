package main

import (
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// int80 makes a system call by the 32-bit entry.
func int80(number, a, b, c uint32) int32

// x32 marks a system call of the x32 ABI.
const x32 = 0x40000000

var archAttempts = []attempt{
	{"62a x32 getpid", func(*places) error { return call(x32 | unix.SYS_GETPID) }},
	{"62b x32 mount", func(p *places) error {
		return call(x32|unix.SYS_MOUNT, path("tmpfs"), path(p.repo), path("tmpfs"), 0, 0)
	}},
	{"62c x32 socket", func(*places) error { return call(x32|unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0) }},
	{"x60a iopl", func(*places) error { return call(unix.SYS_IOPL, 3) }},
	{"x60b ioperm", func(*places) error { return call(unix.SYS_IOPERM, 0x80, 1, 1) }},
	{"x60c modify_ldt", func(*places) error { return call(unix.SYS_MODIFY_LDT, 0, 0, 0) }},
	{"x60d lookup_dcookie", func(*places) error { return call(unix.SYS_LOOKUP_DCOOKIE, 0, 0, 0) }},
}

// narrow is what "61 32-bit socket" runs. Where the kernel has no 32-bit entry the instruction
// faults, which socket(2) cannot answer with.
func narrow() (err error) {
	debug.SetPanicOnFault(true)
	defer func() {
		if recover() != nil {
			err = syscall.EFAULT
		}
	}()
	const socket = 359
	if n := int80(socket, unix.AF_INET, unix.SOCK_STREAM, 0); n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}
