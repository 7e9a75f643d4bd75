package hostenv

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// LoginShell returns the path of the user's shell in the user database, even if clients do not know
// its kind. It returns /bin/sh if there is no entry or the shell cannot be run.
func LoginShell() string {
	if shell := currentUser().Shell; runnable(shell) {
		return shell
	}
	return "/bin/sh"
}

// Shell returns the kind and the path of the shell with which clients run commands. It is the login
// shell of the user database if clients know its kind (zsh, bash, sh, powershell, cmd) and it can
// be run. Otherwise it is a shell of that kind from PATH, else bash, else zsh, else /bin/sh, even
// if /bin/sh is missing. The variable SHELL is ignored (rpc.md 3.4).
func Shell(env LookupEnv) (name, path string) {
	return chooseShell(currentUser().Shell, env)
}

func chooseShell(login string, env LookupEnv) (name, path string) {
	kind := shellKind(login)
	if kind != "" && runnable(login) {
		return kind, login
	}
	for _, k := range []string{kind, "bash", "zsh"} {
		if p := findShell(k, env); p != "" {
			return k, p
		}
	}
	return "sh", "/bin/sh"
}

// shellKind returns the protocol's name for the kind of a shell. It uses the name of the program
// without suffix. It returns "" if the protocol has no name for it.
func shellKind(path string) string {
	base := filepath.Base(path)
	switch stem := strings.TrimSuffix(base, filepath.Ext(base)); stem {
	case "zsh", "bash", "sh", "powershell", "cmd":
		return stem
	case "pwsh":
		return "powershell"
	}
	return ""
}

// findShell looks for a shell of a kind on PATH and then in /bin, because PATH may be empty. It
// returns "" if there is none.
func findShell(kind string, env LookupEnv) string {
	program := kind
	switch kind {
	case "":
		return ""
	case "powershell":
		program = "pwsh"
	}
	list, _ := env("PATH")
	for _, dir := range filepath.SplitList(list) {
		if p := filepath.Join(dir, program); runnable(p) {
			return p
		}
	}
	if p := filepath.Join("/bin", program); runnable(p) {
		return p
	}
	return ""
}

// runnable reports whether path is absolute and names a regular file that this user may execute.
func runnable(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}
