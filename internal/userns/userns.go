// Package userns makes a new user namespace one to work in: a process is started in it with what
// building a view takes, and then maps its own ids. Linux only.
package userns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Caps are what building a view takes, and giving all of it up again: the ambient capabilities that
// a process in a new namespace is started with.
func Caps() []uintptr {
	return []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_SETPCAP}
}

// MapIDs maps the agent's ids onto themselves, which anybody may do for a
// namespace of his own; user_namespaces(7).
func MapIDs(uid, gid int) error {
	line := func(id int) string { n := strconv.Itoa(id); return n + " " + n + " 1\n" }
	for _, m := range []struct{ file, content string }{
		{"setgroups", "deny"},
		{"uid_map", line(uid)},
		{"gid_map", line(gid)},
	} {
		if err := writeFile("/proc/self/"+m.file, m.content); err != nil {
			return fmt.Errorf("mapping ids: %w", err)
		}
	}
	if unix.Geteuid() != uid || unix.Getegid() != gid {
		return fmt.Errorf("mapping ids: they are %d and %d, not %d and %d", unix.Geteuid(), unix.Getegid(), uid, gid)
	}
	return nil
}

// writeFile writes a file that exists.
func writeFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}
