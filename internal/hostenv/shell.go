package hostenv

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// passwdFile is the user database; passwd(5).
const passwdFile = "/etc/passwd"

// maxPasswdSize bounds the bytes of the user database that are read.
const maxPasswdSize = 1 << 20

// account is the entry of a user in the user database. The zero value is a user without an entry.
type account struct {
	home  string
	shell string
}

// currentUser returns the entry of the user that this process runs as. It reads only the file,
// because the name service (nsswitch.conf(5)) would need cgo.
func currentUser() account {
	f, err := os.Open(passwdFile)
	if err != nil {
		return account{}
	}
	defer f.Close()
	return findAccount(f, os.Getuid())
}

// findAccount returns the first well-formed entry of uid.
func findAccount(passwd io.Reader, uid int) account {
	lines := bufio.NewScanner(io.LimitReader(passwd, maxPasswdSize))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":") // name:password:uid:gid:gecos:home:shell
		if len(fields) != 7 {
			continue
		}
		if id, err := strconv.Atoi(fields[2]); err == nil && id == uid {
			return account{home: fields[5], shell: fields[6]}
		}
	}
	return account{}
}

// LoginShell returns the path of the user's shell in the user database, even if clients do not know
// its kind. It returns /bin/sh if there is no entry or the shell cannot be run.
func LoginShell() string {
	if shell := currentUser().shell; runnable(shell) {
		return shell
	}
	return "/bin/sh"
}

// Shell returns the kind and the path of the shell with which clients run commands. It is the login
// shell of the user database if clients know its kind (zsh, bash, sh, powershell, cmd) and it can
// be run. Otherwise it is a shell of that kind from PATH, else bash, else zsh, else /bin/sh, even
// if /bin/sh is missing. The variable SHELL is ignored (rpc.md 3.4).
func Shell(env LookupEnv) (name, path string) {
	return chooseShell(currentUser().shell, env)
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
