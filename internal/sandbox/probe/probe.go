package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/sandbox"
)

const (
	// timeout bounds the whole probe. The probe usually takes some milliseconds, but
	// seconds on a busy or an emulated machine. If the agent gave up there, it would
	// refuse to confine anything for as long as it runs.
	timeout = 15 * time.Second
	// maxReport bounds what a child writes, in bytes.
	maxReport = 16 << 10
)

// namespaceIDs returns the names that the kernel gives to the namespaces of this
// process. Two processes are in the same namespace if the names are equal.
func namespaceIDs() map[sandbox.Layer]string {
	ids := map[sandbox.Layer]string{}
	for _, l := range sandbox.Namespaces() {
		if id, err := os.Readlink("/proc/self/ns/" + l.ProcName()); err == nil {
			ids[l] = id
		}
	}
	return ids
}

// report has the results of a child. A layer that is neither in Done nor in Failed
// was not tried.
type report struct {
	Done       map[sandbox.Layer]bool    `json:"done,omitempty"`
	Failed     map[sandbox.Layer]failure `json:"failed,omitempty"`
	Landlock   int                       `json:"landlock,omitempty"`   // the ABI, if Landlock works
	Namespaces map[sandbox.Layer]string  `json:"namespaces,omitempty"` // namespaceIDs of the child
}

// failure says which step of a try failed, and with which error.
type failure struct {
	Step  string        `json:"step"`
	Text  string        `json:"text"` // of the error
	Errno syscall.Errno `json:"errno,omitempty"`
}

func newReport() report {
	return report{Done: map[sandbox.Layer]bool{}, Failed: map[sandbox.Layer]failure{}}
}

// note records that a step of a layer was done, or that it failed with err. After the
// first failure of a layer, note changes nothing for this layer. It reports whether
// this step and all earlier steps of the layer were done.
func (r *report) note(layer sandbox.Layer, step string, err error) bool {
	if _, ok := r.Failed[layer]; ok {
		return false
	}
	if err == nil {
		r.Done[layer] = true
		return true
	}
	delete(r.Done, layer)
	errno, _ := errors.AsType[syscall.Errno](err)
	r.Failed[layer] = failure{Step: step, Text: err.Error(), Errno: errno}
	return false
}

// Host finds out which layers this user can put on processes on this host. It
// tries the layers in children that end at once (sandbox.md 15), and infers nothing
// from versions. argv0 is the argv[0] of the children. The program has to
// call [Main] when its first argument is [Arg]. Host takes 15 seconds at most.
//
// A layer that does not work is no error. Instead the result lacks the layer, and has
// the reason and a remedy for the operator. A layer whose child gives no answer
// in time does not work. An error means that a child without namespaces could not
// be started, or that ctx has ended. With an error the result is empty.
func Host(ctx context.Context, argv0 string) (sandbox.Host, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	p := prober{argv0: argv0, own: namespaceIDs()}
	var (
		spaces, numbers, landlock, seccomp, supervised     report
		numbersErr, landlockErr, seccompErr, supervisedErr error
		children                                           sync.WaitGroup
	)
	children.Go(func() { spaces = p.namespaces(bounded) })
	children.Go(func() { numbers, numbersErr = p.run(bounded, whatOutside, 0, sandbox.PIDNS) })
	children.Go(func() { landlock, landlockErr = p.run(bounded, whatLandlock, 0, sandbox.Landlock) })
	children.Go(func() {
		seccomp, seccompErr = p.run(bounded, whatSeccomp, 0, sandbox.Seccomp, sandbox.UserNotify, sandbox.Pidfd)
	})
	children.Go(func() { supervised, supervisedErr = p.run(bounded, whatSupervised, 0, sandbox.Supervised) })
	children.Wait()
	if err := firstError(context.Cause(ctx), numbersErr, landlockErr, seccompErr, supervisedErr); err != nil {
		return sandbox.Host{}, fmt.Errorf("probing the sandbox: %w", err)
	}
	return judge([]report{spaces, numbers, landlock, seccomp, supervised}, readFacts), nil
}

// firstError returns the first of errs that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// prober runs the children of one probe.
type prober struct {
	argv0 string
	own   map[sandbox.Layer]string // namespaceIDs of this process
}

// namespaces tries all namespaces in one child. Only if that child cannot be
// started, namespaces tries each namespace in a child of its own, to find out which
// cannot be made. Then it tries all those together that can be made.
func (p prober) namespaces(ctx context.Context) report {
	var all uintptr
	for _, n := range sandbox.Namespaces() {
		all |= n.CloneFlag()
	}
	report, err := p.enter(ctx, all)
	if err == nil {
		return report
	}
	var (
		children sync.WaitGroup
		errs     = make([]error, len(sandbox.Namespaces()))
	)
	for i, n := range sandbox.Namespaces() {
		children.Go(func() { _, errs[i] = p.enter(ctx, n.CloneFlag()|unix.CLONE_NEWUSER) })
	}
	children.Wait()
	missing, made := newReport(), uintptr(0)
	for i, n := range sandbox.Namespaces() {
		if missing.note(n, stepCreate, errs[i]) {
			made |= n.CloneFlag()
		}
	}
	if made&unix.CLONE_NEWUSER == 0 {
		return missing
	}
	report, err = p.enter(ctx, made)
	for _, n := range sandbox.Namespaces() {
		if made&n.CloneFlag() == 0 {
			report.Failed[n] = missing.Failed[n]
		} else if err != nil {
			report.note(n, "creating the namespaces together", err)
		}
	}
	return report
}

// enter runs a child in the new namespaces of flags, and makes sure that they
// are not those of this process.
func (p prober) enter(ctx context.Context, flags uintptr) (report, error) {
	var layers []sandbox.Layer
	for _, n := range sandbox.Namespaces() {
		if flags&n.CloneFlag() != 0 {
			layers = append(layers, n)
		}
	}
	report, err := p.run(ctx, whatNamespaces, flags, layers...)
	for _, layer := range layers {
		if err == nil && report.Done[layer] && report.Namespaces[layer] == p.own[layer] {
			report.note(layer, "entering the namespace", errors.New("the namespace is that of this process"))
		}
	}
	return report, err
}

// run runs one child, which tries what, and returns its report. If the child
// gives no answer the report says that none of the layers works. An error means
// that the child could not be started.
func (p prober) run(ctx context.Context, what string, flags uintptr, layers ...sandbox.Layer) (report, error) {
	report := newReport()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{p.argv0, Arg, what, strconv.FormatUint(uint64(flags), 10), strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Setsid: true}
	if flags&unix.CLONE_NEWUSER != 0 {
		// The child maps its ids itself, as sandbox-init does, and needs these
		// capabilities. This process might not be able to map them: the /proc
		// files of a child belong to root when the agent is not dumpable.
		cmd.SysProcAttr.AmbientCaps = linux.UserNamespaceCaps()
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return report, err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.ENOENT) {
			return report, fmt.Errorf("there is no /proc/self/exe: %w", linux.ErrNoProcfs)
		}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return report, errno // without the path /proc/self/exe, which would not help the reader
		}
		return report, err
	}
	answer := newReport()
	if err = json.NewDecoder(io.LimitReader(stdout, maxReport)).Decode(&answer); err == nil {
		report = answer
	}
	// The child has written its report. The errors do not matter: if the agent is
	// PID 1 of a container, another part of the agent may have reaped the child.
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, layer := range layers {
		if err != nil {
			report.note(layer, "waiting for an answer", firstError(ctx.Err(), err))
		}
	}
	return report, nil
}
