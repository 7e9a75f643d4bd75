package e2e

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
)

// TestStarter: commands of an agent do not inherit what the starter of the agent has set for signals
// and for the niceness.
func TestStarter(t *testing.T) {
	t.Parallel()
	const state = `grep -E 'Sig(Blk|Ign)' /proc/self/status | tr -d '\t\n'; nice`
	// As make(1) does, by glibc.
	_, _, errno := unix.Syscall6(unix.SYS_RT_SIGACTION, 32, uintptr(unsafe.Pointer(&[4]uint64{1})), 0, 8, 0, 0)
	rig.Is(t, errno, 0, "ignoring signal 32")
	agent := func(nice string) *client.Client {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var usr1, before unix.Sigset_t
		usr1.Val[0] = 1<<(unix.SIGUSR1-1) | 1<<(unix.SIGTERM-1)
		rig.Must(t, unix.PthreadSigmask(unix.SIG_BLOCK, &usr1, &before))
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
		program := rig.Start(t, exec.Command("nice", "-n", nice, "sh", "-c", `[ `+nice+` = 0 ] || echo -500 >/proc/self/oom_score_adj; trap "" HUP INT QUIT TSTP TTIN TTOU USR2; exec "$0" --listen ws://127.0.0.1:0`, rig.Agent(t)))
		return dialed(t, program.Line(t))
	}
	c, nice := agent("0"), says(t, rig.Command(t, "nice"))
	const clean = "SigBlk:0000000000000000SigIgn:0000000000000000"
	rig.Is(t, answer(t, c, "", "sh", "-c", state), clean+nice, "a command")
	p := rig.Value(c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", state}, TTY: &client.TTY{}}))
	rig.Is(t, outcome(t, p).stdout, clean+strings.TrimSpace(nice)+"\r\n", "a command at a terminal")
	rig.Is(t, inside(t, c, readOnly(), "/", "sh", "-c", state).stdout, clean+nice, "a confined command")
	if strings.HasPrefix(finish(t, rig.Command(t, "nice", "-n", "-30", "nice")).stdout, "-") {
		rig.Is(t, answer(t, agent("-30"), "", "sh", "-c", state+"; cat /proc/self/oom_score_adj"), clean+"0\n0\n", "a command of an agent with a negative niceness and OOM score")
	}
}
