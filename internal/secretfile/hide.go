package secretfile

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/paths"
)

// Hide returns the paths to hide so that a secret stays hidden when it is renewed, also from
// commands that already run.
//
// The files are the path itself, its current target, and volumes of Kubernetes on the way, which
// hold only secrets: there a renewal puts a new folder beside the folder of the old files.
//
// The folders are those on the way that hold only secrets, and in which a renewal may put
// something. Hiding only a file there would not last, because a rename or a changed link gives the
// name another file. A folder does not count as holding only secrets if every system has it, if
// others may write it, if one of the paths in used is in it, or if it has more than a few small
// files. In such a folder a secret stays hidden only if it is written in place.
func Hide(path string, used []string) (files, folders []string) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		// A sandbox takes only absolute paths. If the working directory was deleted, every confined
		// command is refused, which is better than a command that can read the secret.
		return []string{path}, nil
	}
	files = []string{absolute}
	var places []string
	links := false
	end, err := paths.Walk(absolute, func(s paths.Step) error {
		if isVolume(s.At) {
			files = append(files, s.At)
		}
		if s.Entry.Mode()&fs.ModeSymlink != 0 {
			places, links = append(places, s.At), true
		}
		return nil
	})
	if err != nil {
		end = absolute // it does not exist yet
	}
	files = append(files, end)
	if !isMountPoint(end) { // nothing can be renamed to a mount point
		places = append(places, filepath.Dir(end))
	}
	if links {
		places = append(places, filepath.Dir(filepath.Dir(end))) // of the folders that a link may lead to
	}
	for _, place := range places {
		if alone(place, used) {
			folders = append(folders, place)
		}
	}
	return unique(files), unique(folders)
}

// Used returns the home, the working directory, and the paths in variables such as HOME,
// SSL_CERT_FILE or PATH, because commands may look for things there. It ignores the options of the
// agent, and variables that name one of the secrets.
func Used(environ, secrets []string) []string {
	var used []string
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "AGENT_") || name == "CREDENTIALS_DIRECTORY" || slices.Contains(secrets, value) {
			continue
		}
		for path := range strings.SplitSeq(value, ":") {
			if filepath.IsAbs(path) {
				used = append(used, filepath.Clean(path))
			}
		}
	}
	if path, err := os.Getwd(); err == nil {
		used = append(used, path)
	}
	if me, err := user.Current(); err == nil && me.HomeDir != "" {
		used = append(used, me.HomeDir)
	}
	return used
}

func unique(paths []string) []string {
	slices.Sort(paths)
	return slices.Compact(paths)
}

// isVolume reports whether a folder is a volume of Kubernetes: its files are links through a link
// that is replaced when they are renewed.
func isVolume(folder string) bool {
	target, err := os.Readlink(filepath.Join(folder, "..data"))
	return err == nil && strings.HasPrefix(target, "..")
}

// common are patterns of folders that do not hold only secrets.
var common = []string{
	"/", "/bin", "/boot", "/dev", "/dev/*", "/etc", "/etc/ssl", "/etc/pki", "/etc/ssh", "/home", "/home/*", "/lib", "/lib*", "/media", "/mnt",
	"/opt", "/proc", "/root", "/run", "/run/user", "/run/user/*", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/*", "/usr/*/*", "/var", "/var/*",
}

// Bounds of the contents of a folder with only secrets, including its subfolders.
const (
	maxEntries = 64
	maxSize    = 64 << 10 // of a file
	maxDepth   = 3
)

// alone reports whether a folder, whose path has no links, holds only secrets.
func alone(folder string, used []string) bool {
	if slices.ContainsFunc(common, func(pattern string) bool { ok, _ := filepath.Match(pattern, folder); return ok }) {
		return false
	}
	info, err := os.Lstat(folder)
	if err != nil || !info.IsDir() || info.Mode()&othersWrite != 0 {
		return false
	}
	for _, path := range used {
		if real, err := filepath.EvalSymlinks(path); within(path, folder) || err == nil && within(real, folder) {
			return false
		}
	}
	left := maxEntries
	return small(folder, maxDepth, &left)
}

// small reports whether a folder has only a few small files that are no programs.
func small(folder string, depth int, left *int) bool {
	dir, err := os.Open(folder)
	if err != nil {
		return true // it cannot be listed, so it has something to hide
	}
	entries, _ := dir.ReadDir(*left + 1) // unreadable entries do not count
	_ = dir.Close()                      // nothing was written
	if *left -= len(entries); *left < 0 || depth == 0 {
		return false
	}
	for _, entry := range entries {
		info, err := entry.Info()
		switch {
		case err != nil || info.Mode()&fs.ModeSymlink != 0:
		case info.IsDir():
			if !small(filepath.Join(folder, entry.Name()), depth-1, left) {
				return false
			}
		case !info.Mode().IsRegular() || info.Mode()&0o111 != 0 || info.Size() > maxSize:
			return false
		}
	}
	return true
}

// within reports whether a path is a folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
