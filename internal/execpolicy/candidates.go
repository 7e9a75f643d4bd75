package execpolicy

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

const (
	// maxInterpreters is how many interpreters of interpreters the kernel starts for one script.
	maxInterpreters = 4
	// headBytes is how much of a file the kernel looks at for the line that names its interpreter.
	headBytes = 256
)

// A File is what an execve finds at a path.
type File struct {
	// Real is the path of the file, without links; with " (deleted)" behind it, or below /memfd:,
	// as the kernel names a file without a path.
	Real string
	// Head is the first 256 bytes of its content.
	Head []byte
}

// Candidates returns all that a program may be taken for that is about to be executed, for
// [Policy.Exec] (docs/protocol/execpolicy.md 8.3): its path, and the real one; the interpreters of
// a script; the tool of a program that is many; what a loader loads. Program is the absolute path
// that was given, argv what the program is to find, its first word included, and dir the working
// directory. Look says what is at a path, and false if it cannot.
//
// What argv calls the program counts only where the program itself goes by it.
func Candidates(program string, argv []string, dir string, look func(path string) (File, bool)) (all []Command) {
	args := argv[min(1, len(argv)):]
	name := ""
	if len(argv) > 0 {
		name = argv[0]
	}
	for range maxInterpreters + 1 {
		all = append(all, Command{Argv: slices.Concat([]string{program}, args), Path: program})
		file, ok := look(program)
		if !ok {
			all[len(all)-1].Nameless = true // nobody can say what will run
			return all
		}
		last := program
		if file.Real != program {
			last = file.Real
			all = append(all, Command{Argv: slices.Concat([]string{last}, args), Path: last, Nameless: nameless(last)})
		}
		within := inside(last, name, args, dir)
		if len(within) == 0 && last != program { // a link may have the name that the file has not
			within = inside(program, name, args, dir)
		}
		all = append(all, within...)
		interpreter, argument, isScript := shebang(file.Head)
		if !isScript {
			return all
		}
		args = slices.Concat(argument, []string{program}, args)
		name = interpreter
		if program = rule.Absolute(interpreter, dir, ""); program == "" {
			return append(all, Command{Argv: slices.Concat([]string{interpreter}, args), Nameless: true})
		}
	}
	return all
}

// nameless reports whether a path of the kernel is that of a file which has none.
func nameless(real string) bool {
	return !path.IsAbs(real) || strings.HasSuffix(real, " (deleted)") || strings.HasPrefix(real, "/memfd:")
}

// shebang returns the interpreter of a script and its argument, as the kernel reads them.
func shebang(head []byte) (interpreter string, argument []string, ok bool) {
	line, ok := bytes.CutPrefix(head[:min(len(head), headBytes)], []byte("#!"))
	if !ok {
		return "", nil, false
	}
	line, _, _ = bytes.Cut(line, []byte{'\n'})
	line, _, _ = bytes.Cut(line, []byte{0})
	text := strings.Trim(string(line), " \t")
	interpreter, rest := text, ""
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		interpreter, rest = text[:i], strings.TrimLeft(text[i:], " \t")
	}
	if rest != "" {
		argument = []string{rest}
	}
	return interpreter, argument, interpreter != ""
}

// many are programs that are many tools: which one, their first word says, or else the second.
var many = []string{"busybox", "toybox", "coreutils"}

// kindOf returns the usual name of a program that is many, without what some builds have behind it:
// busybox.static, toybox-x86_64.
func kindOf(base string) string {
	if i := strings.IndexAny(base, ".-"); i > 0 && slices.Contains(many, base[:i]) {
		return base[:i]
	}
	return base
}

// inside returns the programs that a program runs by itself instead of an execve.
func inside(real, name string, args []string, dir string) []Command {
	base := kindOf(strings.TrimSuffix(path.Base(real), " (deleted)"))
	switch {
	case slices.Contains(many, base):
		// A login shell has a hyphen before its name; and the tool may be the program itself again.
		words := slices.Concat([]string{strings.TrimPrefix(path.Base(name), "-")}, args)
		for len(words) > 0 && (slices.Contains(many, path.Base(words[0])) || words[0] == ".") {
			if words = words[1:]; len(words) > 0 {
				words[0] = strings.TrimPrefix(words[0], "--coreutils-prog=")
			}
		}
		if len(words) == 0 {
			return nil
		}
		return []Command{{Argv: words}}
	case IsLoader(base):
		return loaded(args, dir)
	}
	return nil
}

// IsLoader reports whether a program with this name is the dynamic loader, which programs name as
// theirs, and which can be started with a program as its argument.
func IsLoader(base string) bool {
	// That of musl is the C library.
	return base == "ld.so" || base == "libc.so" || strings.HasPrefix(base, "libc.musl-") ||
		strings.HasPrefix(base, "ld-") && strings.Contains(base, ".so")
}

// loaderValues are the options of the loader that have a value.
var loaderValues = []string{"--library-path", "--preload", "--audit", "--inhibit-rpath", "--argv0", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"}

// loaderFlags are those that have none.
var loaderFlags = []string{"--list", "--verify", "--inhibit-cache", "--list-tunables", "--list-diagnostics", "--help", "--version"}

// loaded returns the program that the loader loads.
func loaded(args []string, dir string) []Command {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option, _, inline := strings.Cut(args[0], "=")
		switch {
		case slices.Contains(loaderValues, option) && !inline:
			args = args[min(2, len(args)):]
		case slices.Contains(loaderValues, option) || slices.Contains(loaderFlags, option):
			args = args[1:]
		default: // it may have a value or not: nobody can say what is loaded
			return []Command{{Argv: args, Nameless: true}}
		}
	}
	if len(args) == 0 {
		return nil
	}
	p := Command{Argv: args}
	if strings.Contains(args[0], "/") {
		p.Path = rule.Absolute(args[0], dir, "")
		p.Argv = slices.Concat([]string{p.Path}, args[1:])
	}
	return []Command{p}
}
