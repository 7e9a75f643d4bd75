package execpolicy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/execpolicy/rulefile"
)

// Amendments is the name of the file in a folder of rules to which Amend adds rules for approved
// commands.
const Amendments = "default" + ruleFiles

// Amend adds a rule to a file. The rule allows the commands that begin with prefix. Amend reports
// whether the rule was new. A reader of the file sees either the old or the new content. Several
// processes may call Amend at once, because a lock on a file beside it (.lock) makes them take
// turns. A file that has an error is not changed.
func Amend(file string, prefix []string) (added bool, err error) {
	line, err := amendment(prefix)
	if err != nil {
		return false, err
	}
	folder := filepath.Dir(file)
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	lock, err := os.OpenFile(file+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600) // 0600: no other user can lock it
	if err != nil {
		return false, err
	}
	defer lock.Close() // closing the file also releases the lock
	if err := flock(lock); err != nil {
		return false, &fs.PathError{Op: "flock", Path: lock.Name(), Err: err}
	}
	mode := fs.FileMode(0o644)
	old, err := readRegular(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	default:
		if slices.Contains(strings.Split(string(old), "\n"), line) {
			return false, nil
		}
		info, err := os.Lstat(file)
		if err != nil {
			return false, err
		}
		mode = info.Mode().Perm()
	}
	text := string(old)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	text += line + "\n"
	if _, err := rulefile.Parse(&rule.Set{}, file, []byte(text), OperatorBounds()); err != nil {
		return false, fmt.Errorf("adding a rule: %w", err)
	}
	if err := replace(file, text, mode); err != nil {
		return false, fmt.Errorf("adding a rule: %w", err)
	}
	return true, nil
}

// flock waits for the lock on a file.
func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// replace replaces the content of a file atomically, and waits until the disk has stored it.
func replace(file, text string, mode fs.FileMode) (err error) {
	next, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*.new")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(next.Name())
		}
	}()
	_, err = next.WriteString(text)
	err = errors.Join(err, next.Chmod(mode))
	if err == nil {
		err = next.Sync()
	}
	if err = errors.Join(err, next.Close()); err != nil {
		return err
	}
	if err := os.Rename(next.Name(), file); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// amendment returns the line of a rule that allows the commands that begin with prefix, in the
// format of the reference.
func amendment(prefix []string) (string, error) {
	if len(prefix) == 0 {
		return "", errors.New("the beginning of the commands is empty")
	}
	words := make([]string, len(prefix))
	for i, word := range prefix {
		if !utf8.ValidString(word) {
			return "", fmt.Errorf("word %d is no UTF-8", i)
		}
		words[i] = quoteWord(word)
	}
	return "prefix_rule(pattern=[" + strings.Join(words, ", ") + `], decision="allow")`, nil
}

// quoteWord writes a word as a JSON string with as few escapes as possible. The result is also a
// valid Starlark string.
func quoteWord(word string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range word {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// runners are programs that run what their arguments say. A rule that allows a runner, alone or with
// a flag that takes a program, allows every command.
var runners = []string{
	".", "ash", "awk", "bash", "bun", "bunx", "cmd", "csh", "dash", "deno", "dotnet", "ed", "elvish", "erl", "ex", "fish", "gawk", "ghci", "git", "gmake", "groovy",
	"guile", "invoke", "ipython", "irb", "java", "jshell", "julia", "just", "kotlin", "ksh", "loksh", "lua", "luajit", "m4", "make", "mawk", "mksh", "mono", "nawk",
	"ninja", "nix", "node", "nodejs", "nox", "npx", "nu", "ocaml", "octave", "oksh", "original-awk", "osascript", "perl", "php", "pipx", "pnpx", "posh", "powershell",
	"pwsh", "pypy", "python", "r", "rake", "raku", "rbash", "rscript", "ruby", "runghc", "scala", "sh", "source", "tclsh", "tcsh", "tox", "ts-node", "tsx", "uv",
	"uvx", "wine", "wish", "xonsh", "yash", "zsh",
}

// wrappers are programs that run the command in their arguments, by the number of words before it.
var wrappers = map[string]int{
	"builtin": 0, "busybox": 0, "capsh": 0, "catatonit": 0, "catchsegv": 0, "ccache": 0, "cgexec": 0, "choom": 0, "chpst": 0, "chroot": 1, "chrt": 0, "command": 0,
	"coproc": 0, "coreutils": 0, "cpulimit": 0, "daemonize": 0, "dbus-run-session": 0, "distcc": 0, "doas": 0, "dumb-init": 0, "eatmydata": 0, "entr": 0, "env": 0,
	"envdir": 1, "eval": 0, "exec": 0, "fakechroot": 0, "fakeroot": 0, "faketime": 1, "firejail": 0, "flock": 1, "genv": 0, "gnice": 0, "gnohup": 0, "gosu": 1,
	"gtimeout": 0, "gxargs": 0, "i386": 0, "ionice": 0, "linux32": 0, "linux64": 0, "ltrace": 0, "newgrp": 1, "nice": 0, "nohup": 0, "nsenter": 0, "nsjail": 0,
	"numactl": 0, "parallel": 0, "perf": 1, "pkexec": 0, "prlimit": 0, "proot": 0, "proxychains": 0, "rlwrap": 0, "runcon": 1, "runuser": 0, "s6-setuidgid": 1,
	"sccache": 0, "screen": 0, "setarch": 1, "setpriv": 0, "setsid": 0, "setuidgid": 1, "sg": 1, "ssh": 1, "ssh-agent": 0, "sshpass": 0, "start-stop-daemon": 0,
	"stdbuf": 0, "strace": 0, "su": 1, "su-exec": 1, "sudo": 0, "systemd-inhibit": 0, "systemd-nspawn": 0, "systemd-run": 0, "taskset": 0, "time": 0, "timeout": 0,
	"tini": 0, "torify": 0, "torsocks": 0, "toybox": 0, "tsocks": 0, "uname26": 0, "unbuffer": 0, "unshare": 0, "valgrind": 0, "watch": 0, "xargs": 0, "xvfb-run": 0,
}

// anywhere are programs of which any later argument can name a command: find . -exec.
var anywhere = []string{
	"bsdtar", "bwrap", "c++", "cc", "clang", "clang++", "emacs", "expect", "fd", "find", "g++", "gcc", "gdb", "lldb", "nvim", "rr", "rsync", "rvim", "script", "socat",
	"tar", "tmux", "vi", "view", "vim", "vim.basic", "vim.gtk", "vim.nox", "vim.tiny", "vimdiff",
}

// carriers are programs with words for running a command, as docker run IMAGE COMMAND.
var carriers = map[string][]string{
	"agent": {"exec", "sandbox"}, "cargo": {"run"}, "conda": {"run"}, "docker": {"run", "exec", "create"}, "flatpak": {"run"}, "go": {"run", "tool"},
	"kubectl": {"run", "exec", "debug"}, "nerdctl": {"run", "exec", "create"}, "npm": {"exec", "x"}, "pipenv": {"run"}, "pnpm": {"exec", "dlx"}, "podman": {"run", "exec", "create"},
	"poetry": {"run"}, "yarn": {"exec", "dlx"},
}

// containers are the carriers with a word before the command: the image or the container. Alone, they
// count as runners.
var containers = []string{"docker", "kubectl", "nerdctl", "podman"}

// programFlags are flags that a program or a script may follow.
var programFlags = []string{"-c", "-lc", "-ic", "-ec", "-e", "--eval", "-E", "-r", "-p", "--print", "-m", "-Command", "-command", "/c", "-", "--", "-i", "-s", "-l"}

// TooWide reports whether a rule that allows the commands that begin with prefix would allow every
// command. Nobody can have meant such a rule by the approval of one command.
func TooWide(prefix []string) bool {
	if len(prefix) == 0 {
		return true
	}
	name := strings.ToLower(filepath.Base(prefix[0]))
	if _, exact := wrappers[name]; !exact && !slices.Contains(runners, name) { // linux64, m4
		name = cmp.Or(strings.TrimRight(kindOf(name), "0123456789.-"), name) // python3.11, gcc-12, busybox.static
	}
	before, wraps := wrappers[name]
	wraps = wraps || IsLoader(strings.ToLower(filepath.Base(prefix[0]))) || strings.HasPrefix(name, "qemu-")
	words := carriers[name]
	alone := wraps || name == "agent" || slices.Contains(runners, name) || slices.Contains(containers, name)
	switch {
	case slices.Contains(anywhere, name):
		return true
	case !alone && words == nil:
		return false
	}
	program := false // the next word is a program, a script, or an argument for one
	for i := 1; i < len(prefix); i++ {
		word := prefix[i]
		isFlag := strings.HasPrefix(word, "-") || strings.HasPrefix(word, "/c") || word == "-Command"
		switch {
		case isProgramFlag(word):
			program = true
		case isFlag:
			if program = false; !strings.Contains(word, "=") {
				i++ // skips the next word, because it may be the value of the flag
			}
		case isAssignment(word) && (!program || name == "env" || name == "git"):
		case (!program || wraps) && isNumber(word): // the number of timeout and nice
		case words != nil && slices.Contains(words, word):
			alone, wraps, words = true, true, nil
			if slices.Contains(containers, name) {
				before = 1
			}
		case words != nil:
			return false
		case before > 0:
			before--
		default:
			// What make runs is in its file.
			return wraps && filepath.Base(word) != "make" && TooWide(prefix[i:])
		}
	}
	return alone
}

// isProgramFlag reports whether a program or a script may follow a flag. It also accepts groups of
// flags such as -euc.
func isProgramFlag(word string) bool {
	group := len(word) > 2 && word[0] == '-' && word[1] != '-' && (strings.HasSuffix(word, "c") || strings.HasSuffix(word, "e"))
	return group || slices.Contains(programFlags, word)
}

func isNumber(word string) bool { return word != "" && '0' <= word[0] && word[0] <= '9' }

// isAssignment reports whether env and similar programs read a word as an assignment to a variable.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && !strings.Contains(name, "/")
}
