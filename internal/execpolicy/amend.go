package execpolicy

import (
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

// runners are programs that run commands from their arguments. A rule that allows a runner, alone
// or with a flag that takes a program, allows every command.
var runners = []string{
	"ash", "awk", "bash", "bun", "busybox", "cmd", "csh", "dash", "deno", "doas", "docker", "env", "eval", "exec", "find", "fish", "gawk", "git", "ksh", "lua",
	"make", "mawk", "nice", "node", "nohup", "npx", "osascript", "perl", "php", "podman", "powershell", "pwsh", "python", "ruby", "sh", "ssh", "stdbuf", "su",
	"sudo", "tclsh", "tcsh", "time", "timeout", "toybox", "uv", "uvx", "xargs", "zsh",
}

// programFlags are flags that a program or a script may follow.
var programFlags = []string{"-c", "-lc", "-ic", "-ec", "-e", "--eval", "-E", "-r", "-p", "--print", "-m", "-Command", "-command", "/c", "-", "--", "-i", "-s", "-l"}

// TooWide reports whether a rule that allows the commands that begin with prefix would allow every
// command. Nobody can have meant such a rule by the approval of one command.
func TooWide(prefix []string) bool {
	if len(prefix) == 0 {
		return true
	}
	name := strings.ToLower(filepath.Base(prefix[0]))
	if trimmed := strings.TrimRight(name, "0123456789."); trimmed != "" {
		name = trimmed // python3.11
	}
	if !slices.Contains(runners, name) {
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
		case !program && isNumber(word): // the number of timeout and nice
		default:
			return false
		}
	}
	return true
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
