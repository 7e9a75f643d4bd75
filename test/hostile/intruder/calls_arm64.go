package main

import "golang.org/x/sys/unix"

const (
	sysRenameat   = unix.SYS_RENAMEAT
	sysNewfstatat = unix.SYS_FSTATAT
)

// oldCalls are those that younger architectures lack.
var oldCalls []*callOf

// linksOf returns the number of links as struct stat has it.
func linksOf(st *unix.Statx_t) uint32 { return st.Nlink }
