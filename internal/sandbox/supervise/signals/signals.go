package signals

import (
	"cmp"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Call is a system call that sends a signal.
type Call struct {
	Number int       // of the system call
	Args   [6]uint64 // the arguments as the caller passed them
	Thread int       // the id of the thread that made the call

	// Own reports whether a process or thread belongs to the command.
	Own func(id int) bool
	// Still returns an error if the caller no longer waits. It is called before
	// anything is sent.
	Still func() error
	// Memory returns a copy of n bytes of the caller's memory.
	Memory func(addr uint64, n int) ([]byte, error)
	// Open opens a name in the caller's directory in procfs, for reading. Package
	// signals closes the descriptor.
	Open func(name string) (int, error)
}

// ErrToKernel says that the kernel has to go on with a call, because the call sends a signal
// to the process that made it.
var ErrToKernel = errors.New("the kernel sends it")

// Send sends the signal of the call. The error is an errno, the error of Still, or
// [ErrToKernel].
func (c *Call) Send() error {
	arg := func(i int) int { return int(int32(c.Args[i])) }
	sig := func(i int) syscall.Signal { return syscall.Signal(arg(i)) }
	switch c.Number {
	case unix.SYS_KILL:
		return c.kill(arg(0), sig(1))
	case unix.SYS_TKILL:
		return c.tkill(arg(0), sig(1))
	case unix.SYS_TGKILL:
		return c.toThread(arg(0), arg(1), func() error { return c.send(arg(0), sig(2), nil) })
	case unix.SYS_RT_SIGQUEUEINFO:
		return c.sigqueue(arg(0), sig(1), c.Args[2])
	case unix.SYS_RT_TGSIGQUEUEINFO:
		return c.toThread(arg(0), arg(1), func() error { return c.queue(arg(0), sig(2), c.Args[3]) })
	case unix.SYS_PIDFD_SEND_SIGNAL:
		return c.byDescriptor(arg(0), sig(1), c.Args[2], arg(3))
	}
	return unix.ENOSYS
}

// kill sends a signal to a process, a process group, or all processes of the command:
// kill(2).
func (c *Call) kill(to int, sig syscall.Signal) error {
	own, err := c.process()
	switch {
	case err != nil:
		return err
	case to == own:
		return ErrToKernel
	case to > 0:
		return c.send(to, sig, nil)
	case to == -1:
		return c.sendAll(sig, func(id int, _ process) bool { return id != own })
	case to == 0:
		return c.sendGroup(0, sig)
	}
	return c.sendGroup(-to, sig)
}

// tkill sends a signal to a thread: tkill(2), which has no process id. For a thread of the
// caller's process, the supervisor calls tgkill(2) with the process id too. If a thread of
// another process has got the thread id in the meantime, that thread gets no signal.
func (c *Call) tkill(to int, sig syscall.Signal) error {
	own, err := c.process()
	if err != nil {
		return err
	}
	if to <= 0 {
		return unix.EINVAL
	}
	leader, err := linux.ThreadStatus(to, "Tgid", 10)
	switch {
	case err != nil:
		return unix.ESRCH
	case leader == own:
		if err := c.Still(); err != nil {
			return err
		}
		return unix.Tgkill(own, to, sig)
	case leader == to:
		return c.send(to, sig, nil)
	}
	return unix.EPERM
}

// toThread judges a signal to a thread of a process: tgkill(2) and
// rt_tgsigqueueinfo(2). If the process is the caller's, the kernel goes on with the call,
// because the kernel itself checks that the thread belongs to that process.
func (c *Call) toThread(pid, id int, send func() error) error {
	own, err := c.process()
	switch {
	case err != nil:
		return err
	case pid <= 0 || id <= 0:
		return unix.EINVAL
	case pid == own:
		return ErrToKernel
	case pid == id:
		return send()
	}
	return unix.EPERM
}

// sigqueue sends a signal with a value: rt_sigqueueinfo(2).
func (c *Call) sigqueue(to int, sig syscall.Signal, info uint64) error {
	own, err := c.process()
	switch {
	case err != nil:
		return err
	case to == own:
		return ErrToKernel
	case to <= 0:
		return unix.ESRCH
	}
	return c.queue(to, sig, info)
}

// byDescriptor sends a signal by a descriptor: pidfd_send_signal(2). The supervisor
// reads the process id of the descriptor, and opens that process itself. Here the
// descriptor must be a pidfd; the kernel also takes a directory in procfs.
func (c *Call) byDescriptor(fd int, sig syscall.Signal, info uint64, flags int) error {
	if flags != 0 {
		return unix.EINVAL // like Linux before 6.9, which has no flags
	}
	pid, err := c.pidOf(fd)
	switch {
	case err != nil:
		return err
	case info == 0:
		return c.send(pid, sig, nil)
	}
	return c.queue(pid, sig, info)
}

// pidOf returns the process id of a pidfd of the caller (proc_pid_fdinfo(5)).
func (c *Call) pidOf(fd int) (int, error) {
	info, err := c.Open("fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, unix.EBADF
	}
	defer unix.Close(info)
	buf := make([]byte, 512) // the process id is in the sixth line
	n, err := unix.Read(info, buf)
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(buf[:n]), "\nPid:\t")
	number, _, ended := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(number)
	switch {
	case !found || !ended || err != nil:
		return 0, unix.EBADF
	case pid <= 0: // the process has ended
		return 0, unix.ESRCH
	}
	return pid, nil
}

// process returns the id of the process that made the call.
func (c *Call) process() (int, error) { return linux.ThreadStatus(c.Thread, "Tgid", 10) }

// queue sends a signal with the value at info in the memory of the caller.
func (c *Call) queue(to int, sig syscall.Signal, info uint64) error {
	const siCode = 8 // the offset of si_code in siginfo_t, after si_signo and si_errno
	b, err := c.Memory(info, int(unsafe.Sizeof(unix.Siginfo{})))
	if err != nil {
		return err
	}
	if code := int32(binary.NativeEndian.Uint32(b[siCode:])); code >= 0 || code == -6 { // SI_TKILL
		return unix.EPERM // only the kernel may use these codes
	}
	binary.NativeEndian.PutUint32(b, uint32(sig))
	return c.send(to, sig, (*unix.Siginfo)(unsafe.Pointer(&b[0])))
}

// send sends a signal to the process that has the id to or a thread with this id, if the
// process belongs to the command.
func (c *Call) send(to int, sig syscall.Signal, info *unix.Siginfo) error {
	leader, err := linux.ThreadStatus(to, "Tgid", 10)
	if err != nil {
		return unix.ESRCH
	}
	fd, err := c.openOwn(leader)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := c.Still(); err != nil {
		return err
	}
	return unix.PidfdSendSignal(fd, sig, info, 0)
}

// openOwn opens a process. It fails with EPERM if the process does not belong to the
// command.
func (c *Call) openOwn(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, unix.ESRCH
	}
	// While Own looks up the parents, the parent of the process may end, and a process of
	// the command may get the parent's id. After that the process has another parent, which
	// the second call finds.
	for range 2 {
		if !c.Own(pid) {
			unix.Close(fd)
			return -1, unix.EPERM
		}
	}
	return fd, nil
}

// maxPasses bounds how often sendAll lists the processes to find new ones.
const maxPasses = 16

// sendGroup sends a signal to the command's processes in a process group; 0 is the group of
// the caller.
func (c *Call) sendGroup(group int, sig syscall.Signal) error {
	if group == 0 {
		own, err := readProcess(c.Thread)
		if err != nil {
			return err
		}
		group = own.group
	}
	return c.sendAll(sig, func(_ int, p process) bool { return p.group == group })
}

// sendAll sends a signal to all processes of the command that match. The kernel
// would do this at one moment. sendAll instead lists the processes again until it finds no
// new process that matches.
func (c *Call) sendAll(sig syscall.Signal, match func(id int, p process) bool) error {
	sent, foreign := map[int]bool{}, false
	var failure error
	for range maxPasses {
		all, err := listProcesses()
		if err != nil {
			return cmp.Or(failure, err)
		}
		before := len(sent)
		for id, p := range all {
			switch {
			case sent[id] || !match(id, p):
				continue
			case !all.ofCommand(id):
				foreign = true
				continue
			}
			fd, err := c.openOwn(id)
			if err != nil {
				continue // the process has ended
			}
			// Still is not called again, because a signal that was sent may have killed
			// the caller.
			if len(sent) == 0 {
				if err := c.Still(); err != nil {
					unix.Close(fd)
					return err
				}
			}
			// Since the list was made, another process of the command could have got
			// the id.
			if now, err := readProcess(id); err == nil && match(id, now) {
				failure = cmp.Or(unix.PidfdSendSignal(fd, sig, nil, 0), failure)
				sent[id] = true
			}
			unix.Close(fd)
		}
		if len(sent) == before {
			break
		}
	}
	switch {
	case failure != nil || len(sent) > 0:
		return failure
	case foreign:
		return unix.EPERM
	}
	return unix.ESRCH
}

// process has the ids of the parent and of the process group of a process or thread, from
// proc_pid_stat(5).
type process struct{ parent, group int }

// processes are the processes in procfs, by their ids.
type processes map[int]process

// ofCommand reports whether the supervisor was an ancestor of a process when the list was
// made. Other processes need no closer check.
func (all processes) ofCommand(id int) bool {
	for range len(all) {
		p, ok := all[id]
		if !ok {
			return false
		}
		if id = p.parent; id == os.Getpid() {
			return true
		}
	}
	return false
}

// listProcesses returns all processes in /proc.
// listProcesses fails if it cannot tell who is there, for example without a free descriptor.
func listProcesses() (processes, error) {
	pids, err := linux.PIDs()
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return nil, errno
	}
	all := processes{}
	for _, id := range pids {
		switch p, err := readProcess(id); err {
		case nil:
			all[id] = p
		case unix.ESRCH: // it has ended
		default:
			return nil, err
		}
	}
	return all, nil
}

// readProcess reads the ids of a process or thread.
func readProcess(id int) (process, error) {
	stat, err := linux.StatOf(id)
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != unix.ENOENT {
		return process{}, errno
	}
	if err != nil {
		return process{}, unix.ESRCH
	}
	return process{parent: stat.Number(linux.StatParent), group: stat.Number(linux.StatGroup)}, nil
}
