package sessions

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// signals are the signals that have a name in the protocol.
var signals = []struct {
	name   string
	number syscall.Signal
	wire   protocol.Signal
}{
	{"HUP", syscall.SIGHUP, protocol.SignalHangup},
	{"INT", syscall.SIGINT, protocol.SignalInterrupt},
	{"QUIT", syscall.SIGQUIT, protocol.SignalQuit},
	{"KILL", syscall.SIGKILL, protocol.SignalKill},
	{"USR1", syscall.SIGUSR1, protocol.SignalUser1},
	{"USR2", syscall.SIGUSR2, protocol.SignalUser2},
	{"TERM", syscall.SIGTERM, protocol.SignalTerminate},
	{"STOP", syscall.SIGSTOP, protocol.SignalStop},
	{"CONT", syscall.SIGCONT, protocol.SignalContinue},
	{"WINCH", syscall.SIGWINCH, protocol.SignalWindowChange},
}

// ParseSignal reads a signal as kill(1) does: TERM, SIGTERM, 15.
func ParseSignal(text string) (protocol.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	var known []string
	for _, s := range signals {
		if name == s.name || name == strconv.Itoa(int(s.number)) {
			return s.wire, nil
		}
		known = append(known, s.name)
	}
	return "", fmt.Errorf("%.32q is not a signal that an agent can send: use %s", text, strings.Join(known, ", "))
}

// Unknown reports whether the agent has refused a request because the session or process does not
// exist, or no longer exists.
func Unknown(err error) bool {
	refused, ok := errors.AsType[*client.ServerError](err)
	return ok && refused.Err.Code == protocol.CodeInvalidRequest && strings.HasPrefix(refused.Err.Message, "unknown ")
}

// Attached reports whether the agent has refused a session because another client is attached to
// it.
func Attached(err error) bool {
	refused, ok := errors.AsType[*client.ServerError](err)
	return ok && refused.Err.Code == protocol.CodeSessionAttached
}
