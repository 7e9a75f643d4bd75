package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// TestDefaultsInTags: the tags and helps of the server's flags name the defaults of
// the packages that have them.
func TestDefaultsInTags(t *testing.T) {
	t.Parallel()
	flags, _, err := parse(nil)
	rig.Must(t, err)
	f := flags.(*serverFlags)
	if f.ConcurrentRequests != rpc.DefaultConcurrency || f.RetainBytes != agent.DefaultRetainBytes || f.SessionTTL != agent.DefaultSessionTTL ||
		f.NamedSessionTTL != agent.DefaultNamedSessionTTL {
		t.Errorf("%+v", f)
	}
	const retain, skew = 256 << 20, 30 * time.Second // as the help says
	if agent.DefaultRetainTotalBytes != retain || transport.DefaultClockSkew != skew {
		t.Error("the help names other defaults for --retain-total-bytes or --ws-max-clock-skew-seconds")
	}
}

// TestVariables: what a flag is when a variable says it; "wrong" for a line that is refused then.
func TestVariables(t *testing.T) {
	const wrong = "wrong"
	for _, tt := range []struct{ variable, value, line, field, want string }{
		{"AGENT_LISTEN", "stdio", "", "Listen", "stdio"},
		{"AGENT_LISTEN", "stdio", "--listen unix:///s", "Listen", "unix:///s"},
		{"AGENT_LOG_LEVEL", "warn", "", "LogLevel", "warn"},
		{"AGENT_LOG_LEVEL", "", "", "LogLevel", wrong},
		{"AGENT_LOG_LEVEL", "loud", "", "LogLevel", wrong},
		{"AGENT_RETAIN_BYTES", "9", "", "RetainBytes", "9"},
		{"AGENT_RETAIN_BYTES", "x", "", "RetainBytes", wrong},
		{"AGENT_RETAIN_BYTES", "-1", "", "RetainBytes", wrong},
		{"AGENT_RETAIN_TOTAL_BYTES", "7", "", "RetainTotalBytes", "7"},
		{"AGENT_ENV", "A=1,B=2", "exec true", "Env", "[A=1,B=2]"},
		{"AGENT_ENV", "A=1", "exec -e X=1 true", "Env", "[X=1]"},
		{"AGENT_TTY", "yes", "exec true", "TTY", "true"},
		{"AGENT_TTY", "TRUE", "exec true", "TTY", "true"},
		{"AGENT_TTY", "x", "exec true", "TTY", wrong},
		{"AGENT_TTY", "x", "exec -t true", "TTY", wrong},
		{"AGENT_DIR", "/tmp", "exec true", "Dir", "/tmp"},
		{"AGENT_DIR", "", "exec true", "Dir", ""},
		{"AGENT_SESSION_TTL", "1h", "", "SessionTTL", "1h0m0s"},
		{"AGENT_SESSION_TTL", "9", "", "SessionTTL", wrong},
		{"AGENT_SANDBOX_WORKSPACE", "/tmp", "sandbox true", "Workspace", "[/tmp]"},
		{"AGENT_SANDBOX_WORKSPACE", "/tmp", "sandbox --workspace=/ true", "Workspace", "[/]"},
		{"AGENT_SANDBOX_POLICY", "-", "sandbox true", "Policy", "-"},
		{"AGENT_SANDBOX_POLICY", "/x/", "sandbox true", "Policy", "/x/"},
		{"AGENT_MAX_PROCESSES", "3", "", "MaxProcesses", "3"},
		{"AGENT_MAX_PROCESSES", "many", "", "MaxProcesses", wrong},
		{exitOnStdinClose, "no", "", "ExitOnStdinClose", "false"},
		{exitOnStdinClose, "1", "--remote https://r --environment-id e", "ExitOnStdinClose", "true"},
	} {
		t.Setenv(tt.variable, tt.value)
		got := wrong
		if line, err := read(strings.Fields(tt.line), nil); err == nil {
			got = fmt.Sprint(reflect.Indirect(reflect.ValueOf(line.Flags).Elem().FieldByName(tt.field)))
		}
		rig.Is(t, got, tt.want, "%s=%q agent %s: %s", tt.variable, tt.value, tt.line, tt.field)
		os.Unsetenv(tt.variable)
	}
}
