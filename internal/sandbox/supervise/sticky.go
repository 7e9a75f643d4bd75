package supervise

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sticky has the kernel's protections in directories such as /tmp, where others
// may have put a file or FIFO in place of one that a process is about to make:
// protected_regular and protected_fifos of proc_sys_fs(5). The kernel checks the
// opened name. Here objects are opened without a name, so this process must check.
type sticky struct{ regular, fifos int }

func readSticky() sticky {
	return sticky{regular: setting("protected_regular"), fifos: setting("protected_fifos")}
}

// setting returns the value of a file of /proc/sys/fs, 0 if there is none.
func setting(name string) int {
	text, _ := os.ReadFile("/proc/sys/fs/" + name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// isTrap reports whether the kernel would refuse to open the place with O_CREAT.
func (n *Notifier) isTrap(p *place) bool {
	level := 0
	switch p.Stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		level = n.sticky.regular
	case unix.S_IFIFO:
		level = n.sticky.fifos
	}
	if level == 0 || p.In.FD < 0 || int(p.Stat.Uid) == unix.Geteuid() {
		return false
	}
	var dir unix.Stat_t
	if err := unix.Fstat(p.In.FD, &dir); err != nil {
		return true
	}
	if dir.Mode&unix.S_ISVTX == 0 || dir.Uid == p.Stat.Uid {
		return false
	}
	return dir.Mode&unix.S_IWOTH != 0 || dir.Mode&unix.S_IWGRP != 0 && level > 1
}
