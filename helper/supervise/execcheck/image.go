package execcheck

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/thread"
	"github.com/execagent/execagent/internal/usernotify"
)

// Image is a program with its arguments, as it is about to run or runs.
type Image struct {
	// Path is the program as the caller has named it; "" if only the descriptor
	// names it, or if Real is set.
	Path string
	// Program is the canonical path of the file that was named. Interpreters are
	// those of the files that run it, if it is a script; the last one becomes the
	// process.
	Program      string
	Interpreters []string
	// Argv are the arguments that the caller has passed. Those that the process
	// gets have the interpreters before them.
	Argv []string
	// Real tells that this is what the kernel has loaded, which is not what was
	// judged before: the file was replaced, or the kernel knows another interpreter
	// for it. Nobody can be asked about it any more.
	Real bool
}

// identity tells files apart.
type identity struct{ dev, ino uint64 }

func identityOf(st *unix.Stat_t) identity { return identity{dev: st.Dev, ino: st.Ino} }

// expected is what the process has to be when the kernel has loaded the image.
type expected struct {
	exe     identity
	cmdline []byte // each argument with a NUL behind it, as in /proc/PID/cmdline
}

const (
	// maxArguments bounds the arguments of a program, in bytes with a pointer for
	// each. It is what the kernel takes at most (execve(2)): three quarters of
	// 8 MiB.
	maxArguments = 6 << 20
	// maxInterpreters is how many scripts may have scripts as interpreters.
	maxInterpreters = 4
	// headSize is how much of a file the kernel looks at to find out its format.
	headSize = 256
)

// asked is a call of execve or execveat, as it was read once.
type asked struct {
	dir   int // a descriptor of the caller, or AT_FDCWD
	path  string
	flags int
	argv  []string
}

// read reads the arguments of the call.
func read(call *usernotify.Call) (asked, error) {
	a, args := asked{dir: unix.AT_FDCWD}, call.Args[:]
	if call.Number == unix.SYS_EXECVEAT {
		a.dir, a.flags = int(int32(args[0])), int(int32(args[4]))
		args = args[1:]
	}
	var err error
	if a.path, err = thread.String(int(call.Thread), args[0]); err != nil {
		return asked{}, err
	}
	a.argv, err = readArguments(int(call.Thread), args[1])
	return a, err
}

// readArguments reads a list of strings that ends with a null pointer. The kernel
// gives a program without arguments an empty one.
func readArguments(tid int, list uint64) ([]string, error) {
	if list == 0 {
		return []string{""}, nil
	}
	const pointer = 8
	var argv []string
	for size := 0; ; list += pointer {
		word, err := thread.Memory(tid, list, pointer)
		if err != nil {
			return nil, err
		}
		addr := binary.NativeEndian.Uint64(word)
		if addr == 0 {
			break
		}
		arg, err := thread.LongString(tid, addr, maxArguments-size)
		if err != nil {
			return nil, err
		}
		if size += pointer + len(arg) + 1; size > maxArguments {
			return nil, unix.E2BIG
		}
		argv = append(argv, arg)
	}
	if len(argv) == 0 {
		argv = []string{""}
	}
	return argv, nil
}

// scriptName is the name that the kernel gives the interpreter of a script.
func (a *asked) scriptName() string {
	switch {
	case a.dir == unix.AT_FDCWD || strings.HasPrefix(a.path, "/"):
		return a.path
	case a.path == "":
		return fmt.Sprintf("/dev/fd/%d", a.dir)
	}
	return fmt.Sprintf("/dev/fd/%d/%s", a.dir, a.path)
}

// program is a file that was found.
type program struct {
	fd   int // O_PATH; its inode number is given to no other file while it is open
	path string
	id   identity
}

// interpreter returns the interpreter that the first line of the file names, and
// its argument; "" if the file is no script. A file that cannot be read could not
// be compared later, so its error is EACCES.
func (p *program) interpreter() (path, argument string, err error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", p.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", "", unix.EACCES
	}
	defer unix.Close(fd)
	head := make([]byte, headSize)
	n, err := unix.Pread(fd, head, 0)
	if err != nil {
		return "", "", unix.EACCES
	}
	line, found := bytes.CutPrefix(head[:n], []byte("#!"))
	if !found {
		return "", "", nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	line, _, _ = bytes.Cut(line, []byte{0})
	text := strings.Trim(string(line), " \t")
	path = text
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		path, argument = text[:i], strings.TrimLeft(text[i:], " \t")
	}
	return path, argument, nil
}

// is tells whether the process pid is what was expected. What cannot be read is
// something else.
func (e *expected) is(pid int) bool {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st); err != nil || identityOf(&st) != e.exe {
		return false
	}
	cmdline, err := readCmdline(pid, len(e.cmdline)+1)
	return err == nil && bytes.Equal(cmdline, e.cmdline)
}

// readCmdline reads the arguments of a process, but no more than limit bytes.
func readCmdline(pid, limit int) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, n := make([]byte, limit), 0
	for n < limit {
		m, err := f.Read(b[n:])
		if n += m; err != nil || m == 0 {
			break
		}
	}
	return b[:n], nil
}

// realImage describes the process pid as it is.
func realImage(pid int) (Image, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return Image{}, err
	}
	cmdline, err := readCmdline(pid, maxArguments)
	if err != nil {
		return Image{}, err
	}
	argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	return Image{Program: strings.TrimSuffix(path, " (deleted)"), Argv: argv, Real: true}, nil
}

// join puts arguments together as /proc/PID/cmdline has them.
func join(argv []string) []byte {
	var b bytes.Buffer
	for _, arg := range argv {
		b.WriteString(arg)
		b.WriteByte(0)
	}
	return b.Bytes()
}
