package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// limitFlags bound a command with all its children.
type limitFlags struct {
	Memory   program.Size `env:"AGENT_EXEC_MEMORY" placeholder:"BYTES" help:"Limit of the memory of the command with its children, such as 512m. It needs a control group (cgroup v2)."`
	CPUs     processors   `env:"AGENT_EXEC_CPUS" name:"cpus" placeholder:"N" help:"How many processors the command with its children can use, such as 1.5. It needs a control group."`
	PIDs     uint64       `env:"AGENT_EXEC_PIDS" name:"pids" placeholder:"N" help:"Limit of processes and threads of the command. Without a control group all other processes of its user count too, and root cannot be limited."`
	FileSize program.Size `env:"AGENT_EXEC_FILE_SIZE" placeholder:"BYTES" help:"Limit of the size of each file that the command writes."`
}

// boundFlags bound a command of an agent, and name its user.
type boundFlags struct {
	MaxOutput program.Size `env:"AGENT_EXEC_MAX_OUTPUT" placeholder:"BYTES" help:"Print at most so much of standard output and as much of standard error, up to 8M: the first half at once and the last half at the end. A line says how many bytes are left out between them."`
	limitFlags
	User string `short:"u" name:"user" env:"AGENT_EXEC_USER" placeholder:"NAME[:GROUP]" help:"Run the command as this user and group, each a name or a number. The agent must run as root, and the command is not confined."`
}

// processors are thousandths of a processor.
type processors uint64

// UnmarshalText reads a number of processors as it is written on a command line.
func (p *processors) UnmarshalText(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(n >= 0.01 && n <= 1000) {
		return fmt.Errorf("%q is not a number of processors from 0.01 to 1000", text)
	}
	*p = processors(math.Round(n * 1000))
	return nil
}

// check refuses values that no agent takes.
func (f *limitFlags) check() error {
	switch {
	case f.Memory < 0:
		return fmt.Errorf("--memory %d is negative", f.Memory)
	case f.FileSize < 0:
		return fmt.Errorf("--file-size %d is negative", f.FileSize)
	}
	return nil
}

func (f *boundFlags) check() error {
	user, group, both := strings.Cut(f.User, ":")
	switch {
	case f.MaxOutput < 0 || f.MaxOutput > protocol.MaxOutputBytes:
		return fmt.Errorf("--max-output %d is not from 1 to %d", f.MaxOutput, protocol.MaxOutputBytes)
	case f.User != "" && (user == "" || both && group == ""):
		return fmt.Errorf("--user %s is not NAME or NAME:GROUP", f.User)
	}
	return f.limitFlags.check()
}

// limits returns the limits of the flags; nil: there are none.
func (f *limitFlags) limits() *protocol.ProcessLimits {
	if *f == (limitFlags{}) {
		return nil
	}
	return &protocol.ProcessLimits{MemoryBytes: uint64(f.Memory), MilliCPUs: uint64(f.CPUs), Processes: f.PIDs, FileSizeBytes: uint64(f.FileSize)}
}

// apply sets what the flags ask for. The error names a flag that the agent does not know.
func (f *boundFlags) apply(p *protocol.StartParams, c protocol.Capabilities) error {
	if f.MaxOutput > 0 {
		if !c.ProcessMaxOutput {
			return errors.New("--max-output: the agent cannot bound the output of a command")
		}
		p.MaxOutputBytes = new(uint64(f.MaxOutput))
	}
	if p.Limits = f.limits(); p.Limits != nil && !c.ProcessLimits {
		return errors.New("--memory, --cpus, --pids, --file-size: the agent cannot limit one command")
	}
	if f.User != "" {
		if !c.ProcessRunAs {
			return errors.New("--user: the agent cannot run a command as another user, because it is not root's, or confines or judges every command")
		}
		user, group, _ := strings.Cut(f.User, ":")
		p.RunAs = &protocol.RunAs{User: user, Group: group}
	}
	return nil
}

// endPatience is how long agent exec waits for the end of a command whose time is up, because the agent
// lets the command end in order first.
const endPatience = 10 * time.Second

// limitTime lets the agent end the command when the time of --timeout is up, of which began is the start, also if
// this process is gone by then. An agent that cannot leaves it to the timer, which ends this process.
func (e *execution) limitTime(p *protocol.StartParams, timer *time.Timer, began time.Time) {
	if timer == nil || !e.info.Capabilities.ProcessTimeout {
		return
	}
	left := max(e.flags.Timeout-time.Since(began), time.Millisecond)
	p.TimeoutMs = new(uint64(left.Milliseconds()))
	timer.Reset(left + endPatience)
}
