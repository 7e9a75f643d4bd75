package console

import (
	"os/signal"
	"syscall"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/linux"
)

// catchStop catches the signal by which a shell stops this program, so that the shell gets its
// terminal as it was.
func (c *Console) catchStop() {
	if !linux.Ignores(syscall.SIGTSTP) {
		signal.Notify(c.signals, syscall.SIGTSTP)
	}
}

// isFront reports whether the command has the user's terminal, as far as this console is concerned.
func (c *Console) isFront() bool {
	return !c.command.Waits && (c.stdin == nil || c.stdin.InForeground())
}

// hasJoined reports whether there is a command.
func (c *Console) hasJoined() bool {
	select {
	case <-c.joined:
		return true
	default:
		return false
	}
}

// begin lets the console read the user's terminal.
func (c *Console) begin() { c.begins.Do(func() { close(c.reads) }) }

// follow stops this program because its job has stopped. A job that has stopped because it wants to
// use its terminal gets the terminal instead, if the user's shell lets this program use it.
func (c *Console) follow(sig syscall.Signal) {
	wants := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	if wants && c.stdin != nil {
		c.command.Waits = false
	}
	if wants && (c.stdin == nil || c.stdin.InForeground()) {
		c.resume()
		return
	}
	if sig == syscall.SIGSTOP { // which would stop this program even if nobody can continue it
		sig = syscall.SIGTSTP
	}
	c.stop(sig, true)
}

// stop stops this program, and with group the other programs of its pipeline, until a shell
// continues it.
func (c *Console) stop(sig syscall.Signal, group bool) {
	c.stdin.Yield()
	program.Stop(sig, group)
	c.catchStop()
	c.resume()
}

// resume does what is to be done when this program goes on after a stop: other programs may have
// changed the terminal's mode and its size, or have the terminal now.
func (c *Console) resume() {
	if c.at != nil && c.at.InForeground() {
		c.at.Again()
	}
	if !c.hasJoined() || c.command.Job == nil {
		return
	}
	front := c.isFront()
	if front {
		c.begin()
		if !c.stdin.IsRaw() {
			_ = c.stdin.Raw() // it fails only if the terminal is gone
		}
	}
	c.command.Job.Continue(front, c.stdin.Mode())
}
