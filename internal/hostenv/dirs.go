package hostenv

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
)

// A LookupEnv reads one environment variable, as os.LookupEnv does.
type LookupEnv func(name string) (value string, ok bool)

// HomeDir returns the home of the user, clean and absolute. This is HOME, or the home in the user
// database if HOME is unset or empty. HomeDir returns "" if there is no home, or if it is relative.
func HomeDir(env LookupEnv) string {
	home, _ := env("HOME")
	if home == "" {
		home = currentUser().Home
	}
	if !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Clean(home)
}

// CodexHome returns the folder of the Codex CLI, with links resolved: CODEX_HOME, or .codex in the
// home of the user. The folder need not exist. CodexHome returns "" if there is no home either.
func CodexHome(env LookupEnv) string {
	dir, _ := env("CODEX_HOME")
	if dir == "" {
		home := HomeDir(env)
		if home == "" {
			return ""
		}
		return filepath.Join(home, ".codex")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "" // relative, and the working directory is gone
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	return abs
}

// TempDir returns TMPDIR, clean and absolute, or /tmp if TMPDIR is unset or empty.
func TempDir(env LookupEnv) string {
	if dirs := TemporaryDirectories(env); len(dirs) > 0 {
		return dirs[0]
	}
	return "/tmp"
}

// TemporaryDirectories returns the directory that the user chose for temporary files, TMPDIR, clean
// and absolute. It returns nothing if TMPDIR is unset or empty.
func TemporaryDirectories(env LookupEnv) []string {
	dir, _ := env("TMPDIR")
	if dir == "" {
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil // relative, and the working directory is gone
	}
	return []string{abs}
}

// ProviderID returns an opaque identity of the build of executable, the running
// program: "sha256:" and 64 hex digits, the same for every copy of one build.
func ProviderID(executable string) string {
	sum := sha256.New()
	if info, ok := debug.ReadBuildInfo(); ok {
		io.WriteString(sum, info.String()) // a hash returns no error
	}
	// The first page of an ELF file is enough to tell builds apart: it holds the sizes of all segments
	// and the build id, which the linker makes from the contents. Hashing the whole file would take
	// longer than the program needs to start.
	if f, err := os.Open(executable); err == nil {
		_, _ = io.CopyN(sum, f, 4096) // a file shorter than a page is hashed whole
		f.Close()
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
