package execpolicy

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

const (
	// maxInterpreters is the depth up to which the kernel starts interpreters that are scripts
	// themselves.
	maxInterpreters = 4
	// headBytes is the number of bytes in which the kernel looks for the line that names the
	// interpreter.
	headBytes = 256
)

// A File describes the file that an execve finds at a path.
type File struct {
	// Real is the path of the file without symbolic links. For a file without a path it has the form
	// of the kernel: with " (deleted)" at the end, or below /memfd:.
	Real string
	// Head is the first 256 bytes of its content.
	Head []byte
}

// Candidates returns all commands that an execve may mean, for [Policy.Exec]
// (docs/protocol/execpolicy.md 8.3): the program by its path and by its real path, the interpreters
// of a script, the tool of a multi-call program, and the program that a loader loads. program is
// the absolute path of the execve, argv has all words including the first, and dir is the working
// directory. look describes the file at a path, and returns false if it cannot.
//
// The first candidate is the program as it is called. The others that the kernel needs to run that
// file are Covered; so is the tool of a multi-call program that is called by the tool's name.
//
// The first word of argv counts only for programs that read it themselves: for multi-call programs,
// and for a file behind a link of another name, which may be one that is not known here.
func Candidates(program string, argv []string, dir string, look func(path string) (File, bool)) (all []Command) {
	args := argv[min(1, len(argv)):]
	name := ""
	if len(argv) > 0 {
		name = argv[0]
	}
	for depth := range maxInterpreters + 1 {
		chain := depth > 0
		c := Command{Argv: slices.Concat([]string{program}, args), Path: program, Nameless: nameless(program), Covered: chain}
		if chain {
			c.As = Interpreter
		}
		all = append(all, c)
		file, ok := look(program)
		if !ok {
			all[len(all)-1].Nameless = true // it is unknown what will run
			return all
		}
		last := program
		if file.Real != program {
			last = file.Real
			all = append(all, Command{Argv: slices.Concat([]string{last}, args), Path: last, Nameless: nameless(last), As: Link, Covered: true})
		}
		within := inside(last, name, args, dir)
		if len(within) == 0 && last != program { // the link may have the name of such a program
			within = inside(program, name, args, dir)
		}
		for _, c := range within {
			c.Covered = chain || slices.Equal(c.Argv, slices.Concat([]string{path.Base(program)}, args))
			all = append(all, c)
		}
		interpreter, argument, isScript := shebang(file.Head)
		if !isScript {
			if own := tool(name); !chain && len(within) == 0 && last != program && !nameless(last) && name != "" && own != path.Base(program) && own != path.Base(last) {
				all = append(all, Command{Argv: slices.Concat([]string{own}, args), As: Tool})
			}
			return all
		}
		args = slices.Concat(argument, []string{program}, args)
		name = interpreter
		if program = rule.Absolute(interpreter, dir, ""); program == "" {
			return append(all, Command{Argv: slices.Concat([]string{interpreter}, args), Nameless: true, As: Interpreter})
		}
	}
	return all
}

// nameless reports whether the kernel's path for a file says that the file has no path.
func nameless(real string) bool {
	return !path.IsAbs(real) || strings.HasSuffix(real, " (deleted)") || strings.HasPrefix(real, "/memfd:")
}

// shebang returns the interpreter of a script and its argument. It reads the line in the same way
// as the kernel.
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

// many are multi-call programs. The first word of a command selects the tool, or else the second
// word.
var many = []string{"busybox", "toybox", "coreutils"}

// kindOf returns the usual name of a multi-call program, without the suffix of some builds:
// busybox.static, toybox-x86_64.
func kindOf(base string) string {
	if i := strings.IndexAny(base, ".-"); i > 0 && slices.Contains(many, base[:i]) {
		return base[:i]
	}
	return base
}

// inside returns the programs that a program runs itself, without an execve.
func inside(real, name string, args []string, dir string) []Command {
	base := kindOf(strings.TrimSuffix(path.Base(real), " (deleted)"))
	switch {
	case slices.Contains(many, base):
		// The tool may be the multi-call program again.
		words := slices.Concat([]string{tool(name)}, args)
		for len(words) > 0 && (slices.Contains(many, path.Base(words[0])) || words[0] == ".") {
			if words = words[1:]; len(words) > 0 {
				words[0] = strings.TrimPrefix(words[0], "--coreutils-prog=")
			}
		}
		if len(words) == 0 {
			return nil
		}
		return []Command{{Argv: words, As: Tool}}
	case IsLoader(base):
		return loaded(args, dir)
	}
	return nil
}

// tool returns the tool that the first word of argv names. That of a login shell begins with a hyphen.
func tool(name string) string { return strings.TrimPrefix(path.Base(name), "-") }

// IsLoader reports whether this is a name of the dynamic loader. ELF programs name the loader as
// their interpreter, and the loader can also be started with a program as its argument.
func IsLoader(base string) bool {
	// The loader of musl is also its C library.
	return base == "ld.so" || base == "libc.so" || strings.HasPrefix(base, "libc.musl-") ||
		strings.HasPrefix(base, "ld-") && strings.Contains(base, ".so")
}

// loaderValues are the options of the loader that take a value.
var loaderValues = []string{"--library-path", "--preload", "--audit", "--inhibit-rpath", "--argv0", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"}

// loaderFlags are the options of the loader that take no value.
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
		default: // an unknown option may take a value, so it is unknown what is loaded
			return []Command{{Argv: args, Nameless: true, As: Loaded}}
		}
	}
	if len(args) == 0 {
		return nil
	}
	p := Command{Argv: args, As: Loaded}
	if strings.Contains(args[0], "/") {
		p.Path = rule.Absolute(args[0], dir, "")
		if p.Unsure = !rule.Certain(args[0], dir); !p.Unsure {
			p.Argv = slices.Concat([]string{p.Path}, args[1:])
		}
	}
	return []Command{p}
}
