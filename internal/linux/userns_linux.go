package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UserNamespaceCaps returns the ambient capabilities for starting a process in a new user
// namespace. The process needs them to build a view of the file system, and afterwards to drop all
// of its capabilities.
func UserNamespaceCaps() []uintptr {
	return []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_SETPCAP}
}

// MapIDs maps uid and gid, the ids of the agent, to themselves in the user namespace of this
// process. No id may be mapped yet. A user needs no privilege for this if only the user's own ids
// are mapped and setgroups(2) is forbidden before; user_namespaces(7).
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

// BecomesUsers reports whether this process can start others as other users: whether it is root with the
// capabilities for that, in a user namespace that has other users and lets a process set its groups.
func BecomesUsers() bool {
	for _, c := range []uint{unix.CAP_SETUID, unix.CAP_SETGID} {
		if may, err := Capable(c); err != nil || !may || os.Geteuid() != 0 {
			return false
		}
	}
	// A kernel without user namespaces has no such file.
	groups, _ := os.ReadFile("/proc/self/setgroups")
	return strings.TrimSpace(string(groups)) != "deny" && users(uidMap()) > 1
}

// writeProcFile writes to a file that must exist. os.WriteFile would create it.
func writeProcFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}
