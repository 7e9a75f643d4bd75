package environment

import (
	"errors"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
)

// FuzzFile: a file that is accepted makes a plan that a Set accepts, and one that is
// refused makes none.
func FuzzFile(f *testing.F) {
	for _, text := range []string{
		"", "default = \"a\"\ninclude_local = false\n[[environments]]\nid = \"a\"\nurl = \"wss://h\"\nauth_bearer_token = \"t\"\n",
		"[[environments]]\nid = \"a\"\nprogram = \"p\"\nargs = [\"x\"]\nenv = {A = \"1\"}\ncwd = \"c\"\nskills.required = [\"s\"]\n",
		"[[environments]]\nid = \"a\"\nurl = \"ws://h\"\nconnect_timeout_sec = 0.5\ninitialize_timeout_sec = 1\n",
		"environments = [{id = 'a', url = '''ws://h'''}] # comment\n", `a = ["""x"""", [[[[`, strings.Repeat("{a=", 20),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > maxFile {
			return
		}
		var parsed file
		if err := parsed.parse(text); err != nil {
			return
		}
		plan, err := parsed.plan("/c")
		if err != nil {
			_, ok := errors.AsType[*client.ProtocolError](err)
			rig.Is(t, !ok || len(plan.Entries) > 0, false, "plan gives %+v, %v", plan, err)
			return
		}
		rig.Check(t, plan.check())
	})
}
