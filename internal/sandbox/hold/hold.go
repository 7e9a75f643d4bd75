// Package hold starts a process that waits for permission before it becomes its command, or that
// first sets limits for itself. The
// process has its input, its terminal and its number from the beginning, but nothing of the command
// has run until then. Linux only.
//
//	agent ── fork ──► hold ── exec ──► the command, or the init that confines it
//	  └─ socket: go, or why not ─┘
package hold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/procs"
)

// Arg is the first argument that makes this program hold a command: it calls [Main].
const Arg = "exec-hold"

// Hold is the agent's end. Its methods may be called at once.
type Hold struct {
	// Limits are imposed before the process becomes its command. They are not for a stage, which
	// has limits of its own.
	Limits []linux.Rlimit

	mu     sync.Mutex
	ours   int // -1: used, or closed
	theirs *os.File
}

// New returns the end of a process that is to be started.
func New() (*Hold, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("holding a command: %w", os.NewSyscallError("socketpair", err))
	}
	return &Hold{ours: ends[0], theirs: os.NewFile(uintptr(ends[1]), "hold")}, nil
}

const (
	allowed = 'g'
	refused = 'r'
	// maxText bounds the text of a refusal, in bytes.
	maxText = 4 << 10
)

// Go lets the command run.
func (h *Hold) Go() { h.send([]byte{allowed}) }

// Refuse ends the process with a text on its standard error and code 126.
func (h *Hold) Refuse(text string) {
	h.send(append([]byte{refused}, text[:min(len(text), maxText)]...))
}

// send sends the only packet. A process that is gone needs none.
func (h *Hold) send(packet []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ours >= 0 {
		_ = unix.Send(h.ours, packet, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		unix.Close(h.ours)
		h.ours = -1
	}
}

// Close ends a process that still waits. It may be called often, also on nil.
func (h *Hold) Close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ours >= 0 {
		unix.Close(h.ours)
		h.ours = -1
	}
	_ = h.theirs.Close() // fails where the stage has it
}

// Stage returns the func that makes the stage of the process, for [procs.Spec.Stage]. next is that
// func without a hold, or nil.
func (h *Hold) Stage(next func(procs.Program) (*procs.Stage, error)) func(procs.Program) (*procs.Stage, error) {
	return func(p procs.Program) (*procs.Stage, error) {
		stage := &procs.Stage{Env: []string{"GOMAXPROCS=2"}}
		c := command{program: p.Argv[0], argv: slices.Clone(p.Argv), env: p.Env, dir: p.Dir, tty: p.TTY, look: true, limits: h.Limits}
		if p.Arg0 != nil {
			c.argv[0] = *p.Arg0
		}
		if next != nil {
			var err error
			if stage, err = next(p); err != nil {
				return nil, err
			}
			c = command{program: stage.Path, argv: stage.Argv, env: stage.Env, dir: "/"}
		}
		fd, err := pack.SealedFile(Arg, c.encode())
		if err != nil {
			stage.Close()
			return nil, fmt.Errorf("holding a command: %w", err)
		}
		first := 3 + len(stage.Files)
		stage.Files = append(stage.Files, os.NewFile(uintptr(fd), Arg), h.theirs)
		stage.Path, stage.Argv = "/proc/self/exe", []string{os.Args[0], Arg, strconv.Itoa(first)}
		return stage, nil
	}
}

// command is the command that a held process becomes.
type command struct {
	program   string
	argv, env []string
	dir       string
	tty       bool // its terminal becomes the controlling one
	look      bool // the program is looked for
	limits    []linux.Rlimit
}

// maxCommand bounds a description, in bytes: more than the kernel takes as arguments and
// environment.
const maxCommand = 32 << 20

func (c *command) encode() []byte {
	b := pack.AppendString(nil, c.program)
	b = pack.AppendStrings(b, c.argv)
	b = pack.AppendStrings(b, c.env)
	b = pack.AppendString(b, c.dir)
	b = append(b, pack.Bool(c.tty), pack.Bool(c.look))
	b = pack.AppendInt(b, len(c.limits))
	for _, l := range c.limits {
		b = pack.AppendString(pack.AppendInt(b, l.Resource), l.Name)
		b = binary.LittleEndian.AppendUint64(b, l.Value)
	}
	return b
}

func decode(b []byte) (c command, err error) {
	d := pack.NewDecoder(b)
	c.program = d.String(maxCommand)
	c.argv, c.env = d.Strings(maxCommand), d.Strings(maxCommand)
	c.dir = d.String(maxCommand)
	c.tty, c.look = d.Bool(), d.Bool()
	for n := d.Int(); n > 0 && d.OK(); n-- {
		c.limits = append(c.limits, linux.Rlimit{Resource: d.Int(), Name: d.String(maxCommand), Value: d.Uint64()})
	}
	return c, d.End()
}

const (
	exitRefused  = 126 // also of a program that cannot be executed
	exitNotFound = 127
	exitEnded    = 128 + int(unix.SIGKILL) // the agent is gone, or has ended the process
	exitBroken   = 125
)

// Main waits for permission, and becomes the command. Otherwise it returns the exit code.
func Main() int {
	code, err := await(os.Args)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "agent:", err) // the code says it, too
	}
	return code
}

func await(args []string) (code int, err error) {
	if len(args) < 3 {
		return exitBroken, errors.New("exec-hold: no descriptor")
	}
	first, err := strconv.Atoi(args[2])
	if err != nil || first < 3 {
		return exitBroken, fmt.Errorf("exec-hold: descriptor %.16q", args[2])
	}
	described, socket := first, first+1
	unix.CloseOnExec(described)
	unix.CloseOnExec(socket)
	var c command
	text, err := pack.ReadFile(described, maxCommand)
	if err == nil {
		c, err = decode(text)
	}
	if err != nil {
		return exitBroken, fmt.Errorf("reading the command: %w", err)
	}
	packet := make([]byte, 1+maxText)
	var n int
	for {
		if n, err = unix.Read(socket, packet); err != unix.EINTR {
			break
		}
	}
	switch {
	case err != nil || n == 0:
		return exitEnded, nil
	case packet[0] != allowed:
		return exitRefused, errors.New(string(packet[1:n]))
	}
	c.argv = append(c.argv, args[3:]...) // what the kernel refused to a stage
	return c.become()
}

// become executes the command. It returns only if that fails.
func (c *command) become() (code int, err error) {
	if err := os.Chdir(c.dir); err != nil {
		return exitRefused, err
	}
	if c.tty {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
			return exitRefused, fmt.Errorf("taking the terminal: %w", os.NewSyscallError("ioctl", err))
		}
	}
	if c.look {
		if c.program, err = procs.LookPath(c.program, c.dir, c.env); err != nil {
			return codeOf(err), fmt.Errorf("%s: %w", c.argv[0], err)
		}
	}
	runtime.LockOSThread() // which executes the command
	if err := linux.Impose(c.limits...); err != nil {
		return exitBroken, err
	}
	err = syscall.Exec(c.program, c.argv, c.env)
	return codeOf(err), fmt.Errorf("%s: %w", c.program, err)
}

func codeOf(err error) int {
	if errors.Is(err, os.ErrNotExist) {
		return exitNotFound
	}
	return exitRefused
}

// Probe returns a command that only ends with code, and that works on every host.
func Probe() (argv []string, code int, err error) {
	exe, err := os.Executable()
	return []string{exe, Arg}, exitBroken, err
}
