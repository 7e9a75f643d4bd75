package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// UserNamespaceCaps returns the ambient capabilities that a process in a new user namespace
// is started with: those that it needs to build a view of the file system, and
// afterwards to give all of its capabilities up.
func UserNamespaceCaps() []uintptr {
	return []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_SETPCAP}
}

// MapIDs maps uid and gid, the ids of the agent, onto themselves in the user
// namespace of this process, in which no id is mapped yet. A user needs no
// privilege for that as long as only the own ids are mapped and setgroups(2) is
// forbidden before; user_namespaces(7).
func MapIDs(uid, gid int) error {
	line := func(id int) string { n := strconv.Itoa(id); return n + " " + n + " 1\n" }
	for _, m := range []struct{ file, content string }{
		{"setgroups", "deny"},
		{"uid_map", line(uid)},
		{"gid_map", line(gid)},
	} {
		if err := writeProcFile("/proc/self/"+m.file, m.content); err != nil {
			return fmt.Errorf("mapping ids: %w", err)
		}
	}
	if unix.Geteuid() != uid || unix.Getegid() != gid {
		return fmt.Errorf("mapping ids: they are %d and %d, not %d and %d", unix.Geteuid(), unix.Getegid(), uid, gid)
	}
	return nil
}

// writeProcFile writes to a file, which has to exist: os.WriteFile would create it.
func writeProcFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}
