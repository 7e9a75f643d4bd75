package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// AtConsole runs this program again as a job: it runs the command, and has a terminal of its own in
// place of the user's. The user's terminal stays with this process alone, which is the job's console
// and asks the job's questions. So a command cannot answer a question about itself.
//
// own gives the job its terminal in place of all three standard files, else only in place of those
// that are the user's terminal. If asking is set, the job may ask. ran is false if the job needs no
// terminal, because there is none here.
func AtConsole(sys program.System, own, asking bool) (code int, ran bool, err error) {
	userTTY, _ := os.OpenFile("/dev/tty", os.O_RDWR, 0) // without a terminal nobody can be asked
	defer userTTY.Close()
	if program.NewTerminal(userTTY) == nil && !own {
		return 0, false, nil
	}
	j, err := newJob(sys, userTTY, own)
	if err != nil {
		return 0, true, err
	}
	defer j.close()
	code, err = j.run(sys, asking)
	return code, true, err
}

// job is a job, and the [console.Process] and [console.Job] of its console.
type job struct {
	own       bool
	hasMode   bool       // the terminal has the mode of the user's
	userTTY   *os.File   // the user's terminal; nil: there is none
	ptmx      *os.File   // leads to the job's terminal
	tty       *os.File   // the job's terminal; nil: the session has it
	control   *os.File   // leads to the session
	questions *os.File   // leads to the questioner of the job
	theirs    []*os.File // the session's ends; nil: the session has them

	stopped chan syscall.Signal
	drains  chan chan struct{} // asks Events to yield what the terminal has, and to close the channel then
	ended   chan struct{}      // closed when code is set
	code    int
	lost    error // the session was killed, and has made no report
	running sync.WaitGroup
}

// newJob opens the terminal of the job, and the ways to its session.
func newJob(sys program.System, userTTY *os.File, own bool) (_ *job, err error) {
	j := &job{own: own, userTTY: userTTY, stopped: make(chan syscall.Signal), drains: make(chan chan struct{}, 1), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	if j.ptmx, j.tty, err = pty.Open(); err != nil {
		return nil, fmt.Errorf("opening a terminal for the command: %w", err)
	}
	// It begins as the terminal that it stands for. In the background that is in the mode of a shell,
	// which reads a line.
	if terminal := j.userTerminal(sys); terminal == nil || terminal.InForeground() {
		err = j.setMode(terminal.Mode())
	}
	rows, cols, ok := sys.Size()
	if !ok && own {
		rows, cols = 24, 80 // as for agent exec -t
	}
	if err == nil {
		err = j.Resize(context.Background(), rows, cols)
	}
	if err == nil {
		err = onFile(j.ptmx, func(fd int) error { return unix.SetNonblock(fd, true) })
	}
	if err != nil {
		return nil, fmt.Errorf("opening a terminal for the command: %w", err)
	}
	for _, way := range []struct {
		kind int
		ours **os.File
	}{{unix.SOCK_SEQPACKET, &j.control}, {unix.SOCK_STREAM, &j.questions}} {
		ends, err := unix.Socketpair(unix.AF_UNIX, way.kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		_ = unix.SetNonblock(ends[0], true) // it only saves a thread
		*way.ours = os.NewFile(uintptr(ends[0]), "session")
		j.theirs = append(j.theirs, os.NewFile(uintptr(ends[1]), "session"))
	}
	return j, nil
}

// setMode gives the job's terminal a mode; nil changes nothing.
func (j *job) setMode(mode *unix.Termios) error {
	j.hasMode = true
	if mode == nil {
		return nil
	}
	return onFile(j.ptmx, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, mode) })
}

// userTerminal returns the user's terminal; nil if there is none.
func (j *job) userTerminal(sys program.System) *program.Terminal {
	if in := program.NewTerminal(sys.Stdin); in != nil || j.userTTY == nil {
		return in
	}
	return program.NewTerminal(j.userTTY)
}

// onFile calls do with the descriptor of a file. It does not make the file blocking, as Fd would.
func onFile(f *os.File, do func(fd int) error) (err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = do(int(fd)) }), err)
}

// run starts the session and serves the user, until the job has ended.
func (j *job) run(sys program.System, asking bool) (code int, err error) {
	files := [3]*os.File{sys.Stdin, sys.Stdout, sys.Stderr}
	shared := [3]bool{j.own, j.own, j.own}
	for i, file := range files {
		if shared[i] = shared[i] || j.isUserTTY(file); shared[i] {
			files[i] = j.tty
		}
	}
	consoleSys := sys
	if !j.own || j.userTTY != nil && j.isUserTTY(sys.Stdin) {
		consoleSys.Stdin = j.userTTY
	}
	if !j.own {
		consoleSys.Stdout = j.userTTY
	}
	con := console.OpenAt(consoleSys, j.userTTY, syscall.SIGUSR1, syscall.SIGUSR2)
	defer con.Close()
	asked := alone
	if asking && con.CanAsk() {
		asked = asks
	}
	waits := !shared[0] || !shared[1]
	runtime.LockOSThread() // the session ends with the thread that has started it
	defer runtime.UnlockOSThread()
	if err := j.start(sys, files, !waits && inForeground(consoleSys.Stdin), asked); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(con.Context())
	j.running.Go(func() { j.hear(ctx) })
	defer j.running.Wait()
	defer j.questions.Close()
	defer cancel()
	j.running.Go(func() {
		serveQuestions(ctx, j.questions, func(ctx context.Context, lines []string, take func(string) bool) error {
			j.drain(ctx) // the user sees first what the command has written before
			return con.Ask(ctx, lines, take)
		})
	})
	code, err = con.Join(console.Command{
		Process: j, Job: j, TTY: true, Stdin: true, Waits: waits,
		Capabilities: protocol.Capabilities{ProcessResize: true, ProcessSignals: true},
	})
	if ended, ok := errors.AsType[console.SignalError](err); ok {
		return 128 + int(ended.Signal), nil
	}
	return code, err
}

// isUserTTY reports whether a file is the user's terminal. If that is unknown, a terminal counts as the
// user's.
func (j *job) isUserTTY(file *os.File) bool {
	if program.NewTerminal(file) == nil {
		return false
	}
	device := func(f *os.File) (device int, err error) {
		err = onFile(f, func(fd int) error {
			device, err = unix.IoctlGetInt(fd, unix.TIOCGDEV)
			return err
		})
		return device, err
	}
	its, err := device(file)
	user, err2 := device(j.userTTY)
	return err != nil || err2 != nil || its == user
}

// inForeground reports whether stdin is no terminal, or one of which this program is in the foreground.
func inForeground(stdin *os.File) bool {
	terminal := program.NewTerminal(stdin)
	return terminal == nil || terminal.InForeground()
}

// start starts the session.
func (j *job) start(sys program.System, files [3]*os.File, front bool, asked string) error {
	where, rest := "back", leaves
	if front {
		where = "front"
	}
	if j.own {
		rest = kills
	}
	env := slices.Clip(sys.Environ)
	for _, key := range sys.Keys {
		env = append(env, string(key)) // -e may pass it on to the command
	}
	messages := files[2]
	if j.own && !j.isUserTTY(sys.Stderr) {
		messages = sys.Stderr
	}
	attr := &os.ProcAttr{
		Env: env, Files: append(append(append(files[:], j.tty), j.theirs...), messages),
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: terminalFD, Pdeathsig: syscall.SIGKILL},
	}
	argv := append([]string{os.Args[0], sessionArg, where, rest, asked}, sys.Args...)
	process, err := os.StartProcess("/proc/self/exe", argv, attr)
	if err != nil {
		return fmt.Errorf("starting this program again at a terminal of its own: %w", err)
	}
	j.running.Go(func() { _, _ = process.Wait() }) // hear gets what became of the job
	_ = j.tty.Close()
	for _, file := range j.theirs {
		_ = file.Close()
	}
	j.tty, j.theirs = nil, nil
	return nil
}

// hear takes the session's reports. When ctx ends nobody follows them.
func (j *job) hear(ctx context.Context) {
	defer func() {
		close(j.ended)
		_ = j.ptmx.SetReadDeadline(time.Unix(1, 0)) // Events may wait for output
	}()
	for {
		var report [2]byte
		n, err := j.control.Read(report[:])
		switch {
		case err != nil || n != len(report):
			j.lost = errors.New("the process that holds the command's terminal was killed, and the command with it")
			return
		case report[0] == jobExited:
			j.code = int(report[1])
			return
		default:
			patience, stop := context.WithTimeout(ctx, drainPatience)
			j.drain(patience)
			stop()
			select {
			case j.stopped <- syscall.Signal(report[1]):
			case <-ctx.Done():
			}
		}
	}
}

// drainPatience bounds the wait for output of a job that has stopped, because a question may hold the
// output up.
const drainPatience = 100 * time.Millisecond

// drain waits until the user has the output that the job has written so far.
func (j *job) drain(ctx context.Context) {
	done := make(chan struct{})
	select {
	case j.drains <- done:
	case <-ctx.Done():
		return
	case <-j.ended:
		return
	}
	_ = j.ptmx.SetReadDeadline(time.Unix(1, 0)) // it wakes Events
	select {
	case <-done:
	case <-ctx.Done():
	case <-j.ended:
	}
}

// order gives an order to the session. A session that is gone needs none.
func (j *job) order(what byte, number int) { _, _ = j.control.Write([]byte{what, byte(number)}) }

// close closes all files. A session that still runs ends with control, and the job with it.
func (j *job) close() {
	for _, file := range append([]*os.File{j.tty, j.control, j.questions, j.ptmx}, j.theirs...) {
		_ = file.Close() // nothing is left to be written
	}
}

// Stopped, Stop and Continue make job a [console.Job].
func (j *job) Stopped() <-chan syscall.Signal { return j.stopped }

// Stop stops the process group of the job.
func (j *job) Stop(sig syscall.Signal) { j.order(orderGroup, int(sig)) }

// Continue continues the job.
func (j *job) Continue(front bool, mode *unix.Termios) {
	number := 0
	if front {
		number = 1
		if !j.hasMode {
			_ = j.setMode(mode) // it fails only if the session has ended
		}
	}
	j.order(orderContinue, number)
}

// Events yields the output of the job's terminal, and then the exit of the job.
func (j *job) Events(ctx context.Context) iter.Seq2[client.Event, error] {
	return func(yield func(client.Event, error) bool) {
		defer context.AfterFunc(ctx, func() { _ = j.ptmx.SetReadDeadline(time.Unix(1, 0)) })()
		data := make([]byte, 64<<10)
		output := func(n int) bool {
			return n <= 0 || yield(client.Event{Kind: client.Output, Stream: protocol.StreamPTY, Data: data[:n]}, nil)
		}
		rest := func() bool {
			for left, n := maxRest, 1; n > 0 && left > 0; left -= n {
				if n = j.rest(data); !output(n) {
					return false
				}
			}
			return true
		}
		for on := true; on; {
			n, err := j.ptmx.Read(data)
			if !output(n) {
				return
			}
			if errors.Is(err, os.ErrDeadlineExceeded) { // somebody has woken us, and may do so again from here on
				_ = j.ptmx.SetReadDeadline(time.Time{})
				err = nil
			}
			select {
			case <-j.ended:
				on = false
			case <-ctx.Done():
				yield(client.Event{}, context.Cause(ctx))
				return
			case done := <-j.drains:
				if !rest() {
					return
				}
				close(done)
			default:
				on = err == nil // else the session has ended, and the terminal with it
			}
		}
		<-j.ended
		if !rest() {
			return
		}
		if j.lost != nil {
			yield(client.Event{}, j.lost)
			return
		}
		yield(client.Event{Kind: client.Exited, ExitCode: j.code}, nil)
	}
}

// maxRest bounds the output that is read at once for drain and after the end of the job, in bytes. A
// terminal holds less.
const maxRest = 256 << 10

// rest reads output that is in the job's terminal, and does not wait for more: the job may print
// nothing more, while others hold the terminal open.
func (j *job) rest(data []byte) (n int) {
	_ = onFile(j.ptmx, func(fd int) (err error) {
		n, err = unix.Read(fd, data)
		return err
	})
	return n
}

// Write writes input to the job's terminal.
func (j *job) Write(ctx context.Context, data []byte) error {
	defer context.AfterFunc(ctx, func() { _ = j.ptmx.SetWriteDeadline(time.Unix(1, 0)) })()
	_, err := j.ptmx.Write(data)
	return err
}

// Stdin returns the input side of the job's terminal.
func (j *job) Stdin() io.WriteCloser { return input{j} }

type input struct{ *job }

func (i input) Write(data []byte) (int, error) { return i.ptmx.Write(data) }
func (input) Close() error                     { return nil }

// CloseStdin does nothing, because the end of input is a key at a terminal.
func (*job) CloseStdin(context.Context) error { return nil }

// Signal sends a signal to the job. Those that a terminal sends go to its process group.
func (j *job) Signal(_ context.Context, signal protocol.Signal) error {
	switch signal {
	case protocol.SignalInterrupt:
		j.order(orderGroup, int(syscall.SIGINT))
	case protocol.SignalQuit:
		j.order(orderGroup, int(syscall.SIGQUIT))
	case protocol.SignalHangup:
		j.order(orderJob, int(syscall.SIGHUP))
		j.order(orderGroup, int(syscall.SIGCONT)) // as the kernel does: a job that is stopped has to hear of it
	case protocol.SignalUser1:
		j.order(orderJob, int(syscall.SIGUSR1))
	case protocol.SignalUser2:
		j.order(orderJob, int(syscall.SIGUSR2))
	case protocol.SignalTerminate:
		j.order(orderJob, int(syscall.SIGTERM))
	default:
		return fmt.Errorf("the signal %s is not for a command at a terminal", signal)
	}
	return nil
}

// Resize sets the size of the job's terminal.
func (j *job) Resize(_ context.Context, rows, cols uint16) error {
	return onFile(j.ptmx, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// Terminate kills the job.
func (j *job) Terminate(context.Context) error {
	return j.control.Close()
}

// Discard does nothing: what is not read stays in the terminal.
func (*job) Discard() {}
