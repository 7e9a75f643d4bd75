package main

import "golang.org/x/sys/unix"

const (
	architecture = unix.AUDIT_ARCH_AARCH64
	// Far above all numbers: there is one kind of them.
	foreignNumbers = 0x40000000
)
