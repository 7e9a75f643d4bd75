package supervise

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestSignals: where Landlock keeps no signals inside, a command may send them to
// its own processes, and to no others.
func TestSignals(t *testing.T) {
	t.Parallel()
	const abi = 2
	reached := make(chan os.Signal, 64)
	signal.Notify(reached, harmless)
	defer signal.Stop(reached)
	group := rig.Value(unix.Getpgid(os.Getppid()))
	out := supervisedUnder(t, abi, Config{Policy: workspace(t, t.TempDir())}, sandbox.UnscopedLevel, "signals",
		strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid()), strconv.Itoa(group))
	rig.Is(t, out, "", "out")
	rig.Is(t, len(reached), 0, "signals that have reached the supervisor")
}

// harmless is a signal that is ignored by default.
const harmless = unix.SIGWINCH

// senders are all ways to send a signal to one process.
var senders = map[string]func(pid int) error{
	"kill":   func(pid int) error { return unix.Kill(pid, harmless) },
	"tgkill": func(pid int) error { return unix.Tgkill(pid, pid, harmless) },
	"tkill":  func(pid int) error { return rawCall(unix.SYS_TKILL, uintptr(pid), uintptr(harmless)) },
	"rt_sigqueueinfo": func(pid int) error {
		info := queued()
		return rawCall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(harmless), uintptr(unsafe.Pointer(&info)))
	},
	"rt_tgsigqueueinfo": func(pid int) error {
		info := queued()
		return rawCall(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(pid), uintptr(pid), uintptr(harmless), uintptr(unsafe.Pointer(&info)))
	},
	"pidfd_send_signal": func(pid int) error { return sendByDescriptor(pid, nil) },
	"pidfd_send_signal with a value": func(pid int) error {
		info := queued()
		return sendByDescriptor(pid, (*unix.Siginfo)(unsafe.Pointer(&info)))
	},
}

// queued returns a siginfo_t as sigqueue(3) makes it.
func queued() (info [128]byte) {
	*(*int32)(unsafe.Pointer(&info[0])) = int32(harmless)
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	return info
}

func sendByDescriptor(pid int, info *unix.Siginfo) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, harmless, info, 0)
}

func rawCall(number uintptr, args ...uintptr) error {
	var all [6]uintptr
	copy(all[:], args)
	if _, _, errno := unix.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5]); errno != 0 {
		return errno
	}
	return nil
}

var _ = child("signals", func(t rig.T, args []string) {
	var numbers [3]int
	for i := range numbers {
		numbers[i], _ = strconv.Atoi(args[i])
	}
	supervisor, outside, outsideGroup := numbers[0], numbers[1], numbers[2]
	// As init does: else orphans would get a parent outside.
	rig.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	own := exec.Command("/bin/sh", "-c", "sleep 1000 & sleep 1000 & echo up; wait")
	own.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	own.Stderr = os.Stderr
	up := rig.Value(own.StdoutPipe())
	rig.Must(t, own.Start())
	_ = rig.Value(up.Read(make([]byte, 3)))
	const nobody = 1 << 22
	expect := func(what string, err, want error) { rig.Is(t, err, want, "%s", what) }
	for name, send := range senders {
		for _, to := range []struct {
			what string
			pid  int
			want error
		}{
			{"itself", os.Getpid(), nil},
			{"its child", own.Process.Pid, nil},
			{"the supervisor", supervisor, unix.EPERM},
			{"a process outside", outside, unix.EPERM},
			{"the first process", 1, unix.EPERM},
			{"nobody", nobody, unix.ESRCH},
		} {
			expect(name+" to "+to.what, send(to.pid), to.want)
		}
	}
	main, thread := os.Getpid(), unix.Gettid()
	expect("tgkill of its own thread", unix.Tgkill(main, thread, harmless), nil)
	expect("tkill of its own thread", rawCall(unix.SYS_TKILL, uintptr(thread), uintptr(harmless)), nil)
	expect("tgkill of a thread outside", unix.Tgkill(supervisor, thread, harmless), unix.EPERM)
	expect("tgkill of no thread", unix.Tgkill(main, nobody, harmless), unix.ESRCH)
	expect("tgkill of thread 0", unix.Tgkill(supervisor, 0, harmless), unix.EINVAL)
	expect("kill of everybody", unix.Kill(-1, harmless), nil)
	expect("kill of its group", unix.Kill(0, harmless), nil)
	expect("kill of a group outside", unix.Kill(-outsideGroup, 0), groupError(outsideGroup))
	expect("kill of no group", unix.Kill(-nobody, harmless), unix.ESRCH)
	forged := queued()
	*(*int32)(unsafe.Pointer(&forged[8])) = 0 // SI_USER
	expect("a signal with somebody else as the sender",
		rawCall(unix.SYS_RT_SIGQUEUEINFO, uintptr(own.Process.Pid), uintptr(harmless), uintptr(unsafe.Pointer(&forged))), unix.EPERM)

	// What the kernel sends when something happens on a descriptor.
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	on := int32(1)
	owner := int32(outside)
	expect("F_SETOWN", rawCall(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETOWN, uintptr(outside)), unix.EPERM)
	expect("F_SETOWN_EX", rawCall(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&[2]int32{1, owner}))), unix.EPERM)
	expect("O_ASYNC", rawCall(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK), unix.EPERM)
	expect("O_NONBLOCK", rawCall(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETFL, unix.O_NONBLOCK), nil)
	for request, at := range map[uintptr]*int32{0x5452: &on, 0x8901: &owner, 0x8902: &owner} { // FIOASYNC, FIOSETOWN, SIOCSPGRP
		expect(fmt.Sprintf("ioctl %#x", request), rawCall(unix.SYS_IOCTL, uintptr(pair[0]), request, uintptr(unsafe.Pointer(at))), unix.EPERM)
	}

	expect("kill of the child's group", unix.Kill(-own.Process.Pid, unix.SIGKILL), nil)
	rig.Is[error](t, rig.Err(up.Read(make([]byte, 1))), io.EOF, "what the child writes after its end")
	_ = own.Wait() // it was killed
})

// groupError is how a signal to a group outside has to end: the command's own
// processes may be in it too, as in the group of a terminal.
func groupError(group int) error {
	if own := unix.Getpgrp(); own == group {
		return nil
	}
	return unix.EPERM
}
