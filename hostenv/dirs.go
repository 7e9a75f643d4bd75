package hostenv

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
)

// LookupEnv reads one environment variable, as os.LookupEnv does.
type LookupEnv func(name string) (value string, ok bool)

// HomeDir returns the home of the user, clean and absolute: HOME, or when that
// is unset or empty what the user database says. It returns "" when there is
// none, also for a relative HOME.
func HomeDir(env LookupEnv) string {
	home, _ := env("HOME")
	if home == "" {
		home = currentUser().home
	}
	if !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Clean(home)
}

// TempDir returns TMPDIR, clean and absolute, or /tmp when it is unset or empty.
func TempDir(env LookupEnv) string {
	if dirs := TemporaryDirectories(env); len(dirs) > 0 {
		return dirs[0]
	}
	return "/tmp"
}

// TemporaryDirectories returns the directory that the user chose for temporary
// files, TMPDIR, clean and absolute; nothing when TMPDIR is unset or empty.
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
	// The first page of an ELF file holds the sizes of all segments and the
	// build id of the linker, which differs when the contents do. To hash the
	// whole file would take longer than the program needs to start.
	if f, err := os.Open(executable); err == nil {
		_, _ = io.CopyN(sum, f, 4096) // a shorter file is as good
		f.Close()
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
