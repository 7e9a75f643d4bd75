package linux

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FindCgroup finds the directory of the control group of this process: in the hierarchy of a
// controller of v1, or in that of v2 if controller is empty. It also returns the mount point of the
// hierarchy, which is dir itself or a directory above it. The files are those of cgroups(7) and
// proc_pid_mountinfo(5).
func FindCgroup(cgroupFile, mountinfoFile, controller string) (mount, dir string, err error) {
	lines, err := os.ReadFile(cgroupFile)
	if err != nil {
		return "", "", err
	}
	group := ""
	for line := range strings.Lines(string(lines)) { // number:controllers:path
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && (fields[0] == "0") == (controller == "") && slices.Contains(strings.Split(fields[1], ","), controller) {
			group = fields[2]
		}
	}
	if !filepath.IsAbs(group) || strings.HasPrefix(group, "/..") {
		return "", "", fmt.Errorf("%s has no group of this process that can be seen here", cgroupFile)
	}
	mounts, err := os.Open(mountinfoFile)
	if err != nil {
		return "", "", err
	}
	defer mounts.Close()
	scanner := bufio.NewScanner(mounts)
	for scanner.Scan() {
		before, after, _ := strings.Cut(scanner.Text(), " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !mountsCgroup(after, controller) {
			continue
		}
		root, point := unescapeMount(fields[3]), unescapeMount(fields[4])
		if rel, err := filepath.Rel(root, group); err == nil && filepath.IsLocal(rel) {
			return point, filepath.Join(point, rel), nil
		}
	}
	if err := scanner.Err(); err != nil {
		return "", "", err
	}
	return "", "", fmt.Errorf("no cgroup file system with %s is mounted", group)
}

// mountsCgroup reports whether a mount is the mount of a hierarchy. mount is the end of its line in
// mountinfo: type, source and options.
func mountsCgroup(mount, controller string) bool {
	fields := strings.Fields(mount)
	if len(fields) == 0 {
		return false
	}
	if controller == "" {
		return fields[0] == "cgroup2"
	}
	return len(fields) == 3 && fields[0] == "cgroup" && slices.Contains(strings.Split(fields[2], ","), controller)
}

// unescapeMount decodes the escapes of mountinfo.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s // the usual case: making the replacer costs more than the rest of a line
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
