package execcheck

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/linux/usernotify"
)

// Image is a program with its arguments, as it is about to run or runs. Its environment
// is not part of it, because the kernel reads the environment again.
type Image struct {
	// Path is the program as the caller named it; "" if only the descriptor
	// names it, or if Real is set.
	Path string
	// Called is the absolute path by which the call finds the file of Program. "" if Path is, or if no
	// such path is known: what Path says then leads elsewhere.
	Called string
	// Program is the canonical path of the named file. Interpreters are the
	// canonical paths of the files that run it, if it is a script; the last one
	// becomes the process.
	Program      string
	Interpreters []string
	// Loader is the canonical path of the loader that is loaded too; "" if there is none. With Real
	// it is set only if the program is a loader, which is then Program.
	Loader string
	// Identity distinguishes the files of Program, Interpreters and Loader from others, and from their
	// later state after a write; "" with Real.
	Identity string
	// Heads are the beginnings of these files, in this order, as far as the kernel examines them.
	Heads [][]byte
	// Thread is the calling thread or, with Real, the process. Process is the process of the
	// thread, and Parent its parent.
	Thread, Process, Parent int
	// Argv are the arguments that the caller passed. Final are the arguments that the
	// process gets, with the interpreters before them; nil with Real.
	Argv, Final []string
	// Real says that this is the image that the kernel loaded, which differs from the judged one:
	// the file was replaced, or the kernel knows another interpreter for it. It is too late to ask
	// anybody about it. Program is then the file of /proc/PID/exe, for a script its interpreter, or
	// another file that is mapped into the process, its loader. Path and Interpreters are empty;
	// Argv has the arguments of the process.
	Real bool
}

// identity distinguishes files.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec // a file that was written to in between counts as another one
}

func identityOf(st *unix.Stat_t) identity {
	return identity{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

func (id *identity) String() string {
	return fmt.Sprint(id.dev, id.ino, id.size, id.mtime.Nano(), id.ctime.Nano())
}

// expected is what the process must be after the kernel has loaded the image.
type expected struct {
	exe     identity
	loader  string // the canonical path of the loader; "" if there is none
	cmdline []byte // each argument with a NUL behind it, as in /proc/PID/cmdline
	// For a process that has become something else: the name of the program, its
	// intended arguments, and the arguments of the caller.
	name         string
	argv, passed []string
	// The process of the thread, and its parent.
	process, parent int
}

// allows reports whether an unexpected process may have these arguments. The command
// must already know them, because a script that replaced another one names its own
// arguments in its first line, and the command may not be allowed to read it. The
// interpreter of a foreign format (binfmt_misc) gets the name of the file before, or in
// place of, the first argument.
func (e *expected) allows(argv []string) bool {
	if slices.Equal(argv, e.argv) || slices.Equal(argv, e.passed) {
		return true
	}
	if len(argv) < 2 || argv[1] != e.name {
		return false
	}
	rest := argv[2:]
	return slices.Equal(rest, e.argv) || slices.Equal(rest, e.argv[1:])
}

const (
	// maxArguments bounds the arguments of a program, in bytes with a pointer for
	// each. It is the most that the kernel accepts (execve(2)): three quarters of
	// 8 MiB.
	maxArguments = 6 << 20
	// maxInterpreters is how many interpreters a program may have: its own, the
	// interpreter of its interpreter if this is a script too, and so on. The kernel
	// has the same limit.
	maxInterpreters = 5
	// headSize is how many bytes of a file the kernel examines to find out its format.
	headSize = 256
)

// asked is a call of execve or execveat.
type asked struct {
	dir   int // a descriptor of the caller, or AT_FDCWD
	path  string
	flags int
	argv  uint64 // address of the caller's list of arguments
}

// readFile reads which file the call is about.
func readFile(call *usernotify.Call) (a asked, err error) {
	a = asked{dir: unix.AT_FDCWD, argv: call.Args[1]}
	path := call.Args[0]
	if call.Number == unix.SYS_EXECVEAT {
		a = asked{dir: int(int32(call.Args[0])), flags: int(int32(call.Args[4])), argv: call.Args[2]}
		path = call.Args[1]
	}
	a.path, err = linux.ReadString(int(call.Thread), path, new(linux.PathBuffer))
	return a, err
}

// readArguments reads a list of strings that ends with a null pointer. The kernel
// gives a program without arguments an empty one.
func readArguments(tid int, list uint64) ([]string, error) {
	if list == 0 {
		return []string{""}, nil
	}
	const pointer = 8
	pointers, texts := linux.MemoryPages{Thread: tid}, linux.MemoryPages{Thread: tid}
	var argv []string
	for size := 0; ; list += pointer {
		word, err := pointers.Rest(list)
		if err == nil && len(word) < pointer { // on two pages
			word, err = linux.ReadMemory(tid, list, pointer)
		}
		if err != nil {
			return nil, err
		}
		addr := binary.NativeEndian.Uint64(word)
		if addr == 0 {
			break
		}
		arg, err := texts.String(addr, maxArguments-size)
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

// folder is the text of the path where a relative path of the call begins.
func (a *asked) folder(tid int) string {
	name := "cwd"
	if a.dir != unix.AT_FDCWD {
		name = fmt.Sprintf("fd/%d", a.dir)
	}
	text, _ := os.Readlink(fmt.Sprintf("/proc/%d/%s", tid, name)) // "" leads nowhere
	return text
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

// A finder finds what a path leads to, as Find of [Config] does.
type finder func(dir int, path string, flags int) (fd int, canonical string, err error)

// called returns the absolute path by which a call names the program that was found, or "". The call
// may have found it before a thread changed the directory, and .. behind a link is not what it seems.
// So a path counts only if it leads to the program. folder is the text of where a relative path begins.
func (a *asked) called(p *program, folder string, find finder) string {
	text := a.path
	switch {
	case text == "":
		return ""
	case path.IsAbs(text) && path.Clean(text) == text:
		return text
	case !path.IsAbs(text):
		text = folder + "/" + text
	}
	if text = path.Clean(text); p.isAt(text, find) {
		return text
	}
	parent, name := path.Split(a.path)
	fd, real, err := find(a.dir, cmp.Or(parent, "."), 0)
	if err != nil {
		return ""
	}
	unix.Close(fd)
	if text = path.Join(real, name); p.isAt(text, find) {
		return text
	}
	return ""
}

// program is a program file that was found.
type program struct {
	fd   int // O_PATH; its inode number is given to no other file while it is open
	path string
	id   identity
}

// isAt reports whether an absolute path leads to the program.
func (p *program) isAt(text string, find finder) bool {
	if !path.IsAbs(text) {
		return false
	}
	fd, _, err := find(unix.AT_FDCWD, text, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Dev == p.id.dev && st.Ino == p.id.ino
}

// open opens the file for reading.
func (p *program) open() (int, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", p.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, unix.EACCES
	}
	return fd, nil
}

// examine returns the bytes from which the kernel finds out the format of the file and, if the file
// is no script, the loader that it names. A file that cannot be read could not be compared later,
// so its error is EACCES.
func (p *program) examine() (head [headSize]byte, loader string, err error) {
	fd, err := p.open()
	if err != nil {
		return head, "", err
	}
	defer unix.Close(fd)
	var b [beginning]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return head, "", unix.EACCES
	}
	return [headSize]byte(b[:]), loaderOf(fd, b[:n]), nil
}

// interpreter returns the interpreter that the head of a script names, with its
// argument if there is one. A file that is no script for the kernel may still be
// another kind of program.
//
// Everything is as in the kernel. The line ends with a newline. Without one, it
// continues to the end of the head, where the name must not be cut off, and a NUL
// ends the name or the argument. Everything after the name is one argument. It can
// be empty, if blanks and a NUL follow the name.
func interpreter(head [headSize]byte) (with []string, script bool) {
	const blanks, ends = " \t", " \t\x00"
	text, found := bytes.CutPrefix(head[:], []byte("#!"))
	if !found {
		return nil, false
	}
	beforeNUL, _, _ := bytes.Cut(text, []byte{0})
	if line, _, found := bytes.Cut(beforeNUL, []byte("\n")); found {
		text = line
	} else {
		if !bytes.ContainsAny(bytes.TrimLeft(text, blanks), ends) {
			return nil, false
		}
		text = text[:len(text)-1]
	}
	text = bytes.Trim(text, blanks)
	if len(text) == 0 || text[0] == 0 {
		return nil, false
	}
	end := bytes.IndexAny(text, ends)
	if end < 0 {
		return []string{string(text)}, true
	}
	with = []string{string(text[:end])}
	if text[end] != 0 {
		argument, _, _ := bytes.Cut(bytes.TrimLeft(text[end:], blanks), []byte{0})
		with = append(with, string(argument))
	}
	return with, true
}

// is reports whether the process pid is as expected. It returns false if
// something cannot be read.
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
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/cmdline", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readUpTo(fd, limit)
}

// readUpTo reads a file to its end, but no more than limit bytes. The file of a process that has just ended cannot be read.
func readUpTo(fd, limit int) ([]byte, error) {
	b, n := make([]byte, limit), 0
	for n < limit {
		m, err := unix.Read(fd, b[n:])
		if err != nil {
			return nil, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return b[:n], nil
}

// realImage describes the process pid as it is. A file that no path leads to any more
// could not be judged, so it is an error. So is a file of another mount namespace,
// because the command made that namespace, and can give any file any path there.
func realImage(pid, parent int) (Image, error) {
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	path, err := os.Readlink(exe)
	if err != nil {
		return Image{}, err
	}
	var loaded, there unix.Stat_t
	if path[0] != '/' || strings.HasSuffix(path, " (deleted)") || unix.Stat(exe, &loaded) != nil || unix.Stat(path, &there) != nil ||
		identityOf(&loaded) != identityOf(&there) {
		return Image{}, unix.ENOENT
	}
	cmdline, err := readCmdline(pid, maxArguments)
	if err != nil {
		return Image{}, err
	}
	argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	image := Image{Program: path, Argv: argv, Real: true, Thread: pid, Process: pid, Parent: parent}
	head := make([]byte, headSize)
	if f, err := os.Open(exe); err == nil {
		n, _ := f.Read(head) // an unreadable file is no script
		_ = f.Close()
		image.Heads = [][]byte{head[:n]}
	}
	return image, nil
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
