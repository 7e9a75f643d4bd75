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
	Number int       // of the call
	Args   [6]uint64 // as the caller gave them
	Thread int       // that has made the call

	// Own reports whether a process or thread is one of the command's.
	Own func(id int) bool
	// Still returns an error if the caller does not wait any more. It is asked
	// before anything is sent.
	Still func() error
	// Memory returns a copy of n bytes of the caller's memory.
	Memory func(addr uint64, n int) ([]byte, error)
	// Open opens a name in the caller's directory in procfs, for reading. Who
	// calls closes the descriptor.
	Open func(name string) (int, error)
}

// ErrToKernel says that the kernel has to go on with a call: it sends something to
// the process that has made it.
var ErrToKernel = errors.New("the kernel sends it")

// Send sends what the call asks for. The error is an errno, what Still says, or
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

// kill sends a signal to a process, a group, or all processes of the command:
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

// tkill sends a signal to a thread: tkill(2), which has no number of the process.
// The supervisor says both, so that a thread of another process that has the
// number by now gets nothing.
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
// rt_tgsigqueueinfo(2). The kernel goes on with one within the caller's process: it
// looks itself whether the thread belongs there.
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
// reads which process the descriptor is of, and opens that one itself. A directory
// in procfs is no such descriptor here.
func (c *Call) byDescriptor(fd int, sig syscall.Signal, info uint64, flags int) error {
	if flags != 0 {
		return unix.EINVAL // newer than the kernels that this is for
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

// pidOf returns the process that the caller's pidfd is of (proc_pid_fdinfo(5)).
func (c *Call) pidOf(fd int) (int, error) {
	info, err := c.Open("fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, unix.EBADF
	}
	defer unix.Close(info)
	buf := make([]byte, 512) // the number is in the sixth line
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
	case pid <= 0: // it has ended
		return 0, unix.ESRCH
	}
	return pid, nil
}

// process returns the number of the process that has made the call.
func (c *Call) process() (int, error) { return linux.ThreadStatus(c.Thread, "Tgid", 10) }

// queue sends a signal with the value at info in the memory of the caller.
func (c *Call) queue(to int, sig syscall.Signal, info uint64) error {
	const siCode = 8 // where siginfo_t has it, after si_signo and si_errno
	b, err := c.Memory(info, int(unsafe.Sizeof(unix.Siginfo{})))
	if err != nil {
		return err
	}
	if code := int32(binary.NativeEndian.Uint32(b[siCode:])); code >= 0 || code == -6 { // SI_TKILL
		return unix.EPERM // only the kernel says so
	}
	binary.NativeEndian.PutUint32(b, uint32(sig))
	return c.send(to, sig, (*unix.Siginfo)(unsafe.Pointer(&b[0])))
}

// send sends a signal to the process that has the number to, or has a thread with
// it, if that is one of the command's.
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

// openOwn opens a process if it is one of the command's, and fails with EPERM if
// it is not.
func (c *Call) openOwn(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, unix.ESRCH
	}
	// Its parent may end while the parents are looked up, and the parent's number
	// become that of one of the command's processes. The process itself has
	// another parent then, which the second look finds.
	for range 2 {
		if !c.Own(pid) {
			unix.Close(fd)
			return -1, unix.EPERM
		}
	}
	return fd, nil
}

// maxPasses bounds how often sendAll looks for processes that have been started
// since it looked before.
const maxPasses = 16

// sendGroup sends a signal to the processes of a group; 0 is that of the caller.
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
// would do that at one moment; here, processes that are started meanwhile are
// looked for until there are none.
func (c *Call) sendAll(sig syscall.Signal, match func(id int, p process) bool) error {
	sent, foreign := map[int]bool{}, false
	var failure error
	for range maxPasses {
		before, all := len(sent), listProcesses()
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
				continue // it has ended
			}
			// Once one is sent, the caller may be among those that are killed.
			if len(sent) == 0 {
				if err := c.Still(); err != nil {
					unix.Close(fd)
					return err
				}
			}
			// The number could have become that of another process of the command
			// since it was listed.
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

// process is what proc_pid_stat(5) says of a process or thread.
type process struct{ parent, group int }

// processes are those that procfs lists, by their numbers.
type processes map[int]process

// ofCommand reports whether the supervisor was an ancestor of a process when
// these were listed. Other processes need not be looked at more closely.
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
func listProcesses() processes {
	all := processes{}
	for _, id := range linux.PIDs() {
		if p, err := readProcess(id); err == nil {
			all[id] = p
		}
	}
	return all
}

// readProcess reads what there is of a process or thread.
func readProcess(id int) (process, error) {
	stat, err := linux.StatOf(id)
	if err != nil {
		return process{}, unix.ESRCH
	}
	return process{parent: stat.Number(linux.StatParent), group: stat.Number(linux.StatGroup)}, nil
}
