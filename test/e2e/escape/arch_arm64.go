package main

import "syscall"

// There are no other ABIs that a 64-bit process could call.
var archAttempts = []attempt{}

func narrow() error { return syscall.ENOSYS }
