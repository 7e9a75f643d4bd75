package main

import "golang.org/x/sys/unix"

const (
	architecture = unix.AUDIT_ARCH_X86_64
	// Numbers from here on are numbers of the x32 ABI.
	foreignNumbers = 0x40000000
)
