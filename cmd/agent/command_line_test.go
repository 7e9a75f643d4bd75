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
	if f.ConcurrentRequests != rpc.DefaultConcurrency || f.SessionTTL != agent.DefaultSessionTTL ||
		f.NamedSessionTTL != agent.DefaultNamedSessionTTL {
		t.Errorf("%+v", f)
	}
	const retain, skew = 256 << 20, 30 * time.Second // as the help says
	if agent.DefaultRetainTotalBytes != retain || agent.DefaultRetainBytes != 1<<20 || transport.DefaultClockSkew != skew {
		t.Error("the help names other defaults for --retain-bytes, --retain-total-bytes or --ws-max-clock-skew-seconds")
	}
}

// TestVariables: what a flag is when a variable says it; "wrong" for a line that is refused then.
func TestVariables(t *testing.T) {
	for typed, want := range lines(t, "variables") {
		entry, line, _ := strings.Cut(typed, " agent")
		variable, value, _ := strings.Cut(entry, "=")
		field, want, _ := strings.Cut(want, " ")
		t.Setenv(variable, value)
		got := "wrong"
		if line, err := read(strings.Fields(line), nil); err == nil {
			got = fmt.Sprint(reflect.Indirect(reflect.ValueOf(line.Flags).Elem().FieldByName(field)))
		}
		rig.Is(t, got, want, "%s: %s", typed, field)
		os.Unsetenv(variable)
	}
}
