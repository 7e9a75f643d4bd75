package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/hostenv"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// Kinds of failed starts, besides those of a sandbox.
const (
	limitUnavailable = "limitUnavailable" // this host cannot hold a limit
	userUnavailable  = "userUnavailable"  // the process cannot run as that user here
)

// limit decides what holds each limit of the request, and makes the control group. A limit that cannot be held
// is an error that names it.
func (l *launch) limit(context.Context) error {
	asked := l.params.Limits
	if asked == nil || *asked == (protocol.ProcessLimits{}) {
		return nil
	}
	groups, held := l.session.agent.cfg.Cgroups, &protocol.HeldLimits{}
	var inGroup procs.CgroupLimits
	if asked.MemoryBytes > 0 {
		if err := groups.Enable("memory"); err != nil {
			return notHeld("memoryBytes", err, "an rlimit does not count the memory of several processes")
		}
		held.MemoryBytes, inGroup.MemoryMax = protocol.HeldByCgroup, asked.MemoryBytes
	}
	if asked.MilliCPUs > 0 {
		if err := groups.Enable("cpu"); err != nil {
			return notHeld("milliCpus", err, "there is no rlimit for it")
		}
		held.MilliCPUs, inGroup.CPUMax = protocol.HeldByCgroup, fmt.Sprintf("%d %d", asked.MilliCPUs*100, 100_000)
	}
	if asked.Processes > 0 {
		err := groups.Enable("pids")
		switch {
		case err == nil:
			held.Processes, inGroup.PIDs = protocol.HeldByCgroup, asked.Processes
		case l.uid() == 0:
			return notHeld("processes", err, "an rlimit does not hold root")
		default:
			held.Processes, l.rlimits.Processes = protocol.HeldByRlimit, asked.Processes
		}
	}
	if asked.FileSizeBytes > 0 {
		held.FileSizeBytes, l.rlimits.FileSize = protocol.HeldByRlimit, asked.FileSizeBytes
	}
	l.held = held
	if inGroup == (procs.CgroupLimits{}) {
		return nil
	}
	group, err := groups.NewLimited(inGroup, l.params.Sandbox != nil)
	if err != nil {
		return withKind(limitUnavailable, protocol.InvalidParams("limits: %v", err))
	}
	l.spec.Cgroup = group
	l.refused.limit(group, asked)
	return nil
}

func notHeld(member string, err error, otherwise string) error {
	return withKind(limitUnavailable, protocol.InvalidParams("limits.%s: this agent cannot hold it, because %v (agent doctor says more), and %s", member, err, otherwise))
}

// checkRlimits refuses rlimits that the process could lift. Nothing confines it, so it keeps the capabilities of
// the agent, if it does not run as another user.
func (l *launch) checkRlimits() error {
	if l.spec.User != nil && l.uid() != 0 {
		return nil
	}
	if l.rlimits.Processes > 0 {
		admin, err := linux.Capable(unix.CAP_SYS_ADMIN)
		if err != nil || admin {
			return notHeld("processes", cmp.Or(err, errors.New("it has CAP_SYS_ADMIN")), "an rlimit does not hold whoever has that")
		}
	}
	if l.rlimits.FileSize > 0 {
		if err := linux.CheckRlimits(); err != nil {
			return notHeld("fileSizeBytes", err, "a control group does not count the size of files")
		}
	}
	return nil
}

// uid is the user that the process will run as.
func (l *launch) uid() int {
	if l.spec.User != nil {
		return int(l.spec.User.UID)
	}
	return os.Geteuid()
}

// hasRlimits reports whether the process has limits that it must set itself before it becomes its command.
func (l *launch) hasRlimits() bool { return l.rlimits != (confine.Limits{}) }

// errConfinedUser refuses a user for a process that an init starts: the init has the ids of the agent.
var errConfinedUser = withKind(userUnavailable, protocol.InvalidParams(
	"runAs: a process that is confined, or whose programs are judged by rules, runs as the user of the agent: leave out runAs or the sandbox, or start an agent as that user"))

// checkUser refuses what a process of another user cannot have. It is called when the sandbox and the rules are known.
func (l *launch) checkUser() error {
	if l.params.RunAs != nil && (l.box != nil && !l.box.Unconfined() || l.judged != nil) {
		return errConfinedUser
	}
	return nil
}

// runsAs reports whether some request can have a process of another user: whether this host lets the agent start
// one, and the operator lets a process be neither confined nor judged.
func (a *Agent) runsAs() bool {
	if a.cfg.SandboxCeiling != nil || a.cfg.RequireSandbox || a.cfg.RequireNetworkEnforcement {
		return false
	}
	rules := a.rules.Policy()
	return (rules == nil || rules.Enforce != execpolicy.InTree) && linux.BecomesUsers()
}

// runAs sets the user of a process, and the variables that a login would set. Those that the request
// names stay. What the process inherits of the agent's variables is the matter of [environ].
func runAs(p *protocol.StartParams, spec *procs.Spec) error {
	if p.RunAs == nil {
		return nil
	}
	if uid := os.Geteuid(); uid != 0 {
		return withKind(userUnavailable, protocol.InvalidParams("runAs: this agent runs as the user %d, and only root can start a process as another user", uid))
	}
	account, err := hostenv.FindAccount(p.RunAs.User, p.RunAs.Group)
	if err != nil {
		return withKind(userUnavailable, protocol.InvalidParams("runAs.%v", err))
	}
	spec.User = &procs.User{UID: account.UID, GID: account.GID, Groups: account.Groups}
	name := cmp.Or(account.Name, fmt.Sprint(account.UID))
	for _, v := range [][2]string{
		{"HOME", cmp.Or(account.Home, "/")}, {"USER", name}, {"LOGNAME", name}, {"SHELL", cmp.Or(account.Shell, "/bin/sh")}, // passwd(5)
	} {
		_, given := p.Env[v[0]]
		if !given && p.EnvPolicy != nil {
			_, given = p.EnvPolicy.Set[v[0]]
		}
		if given {
			continue
		}
		spec.Env = slices.DeleteFunc(slices.Clone(spec.Env), func(kv string) bool { return strings.HasPrefix(kv, v[0]+"=") })
		spec.Env = append(spec.Env, v[0]+"="+v[1])
	}
	return nil
}

// checkTool refuses what a tool of the agent's own cannot have, because its output is a protocol and it is part of
// the agent.
func checkTool(p *protocol.StartParams) error {
	member := ""
	switch {
	case p.MaxOutputBytes != nil:
		member = "maxOutputBytes"
	case p.Limits != nil:
		member = "limits"
	case p.RunAs != nil:
		member = "runAs"
	default:
		return nil
	}
	return protocol.InvalidParams("builtin: a tool cannot have %s: leave it out", member)
}

// reasonOf says in the words of a refusal which limit was reached.
func reasonOf(own uint64, member, operator string) string {
	if own > 0 {
		return "the request limits it (limits." + member + ")"
	}
	return operator
}
