package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestRefusalIsBounded: a refusal does not repeat a long command.
func TestRefusalIsBounded(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(&execpolicy.Policy{Unmatched: rule.Forbidden}, nil))}).attach("")
	params := sh("p", "")
	params["argv"] = []string{"true", strings.Repeat("x", 100_000)}
	err := c.call("process/start", params, nil)
	refused, ok := errors.AsType[*protocol.Error](err)
	if !ok || len(refused.Message) > 1_000 || string(refused.Data) != `{"reason":"execPolicy","matchedRules":[]}` {
		t.Errorf("got %.2000v", err)
	}
}

// TestHiddenProgram: a sandbox that hides the program that was allowed does not have another one of
// that name run.
func TestHiddenProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, at := range []string{"first", "second"} {
		rig.Must(t, errors.Join(os.Mkdir(dir+"/"+at, 0o755), rig.WriteProgram(dir+"/"+at+"/tool", []byte("#!/bin/sh\necho "+at+"\n"))))
	}
	policy := policyOf(t, `prefix_rule(["`+dir+`/first/tool"])`, func(p *execpolicy.Policy) { p.Unmatched = rule.Forbidden })
	c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(policy, nil))}).attach("")
	for name, sandbox := range map[string]object{
		"shown":  managed("restricted", special("minimal", "read"), at(dir, "read")),
		"hidden": managed("restricted", special("minimal", "read"), at(dir+"/second", "read")),
	} {
		params := sh(name, "")
		params["argv"], params["env"], params["sandbox"] = []string{"tool"}, object{"PATH": dir + "/first:" + dir + "/second:/usr/bin:/bin"}, sandbox
		if got := output(c, params); (got == "first\n") != (name == "shown") || strings.HasPrefix(got, "second") {
			t.Errorf("%s: output %q", name, got)
		}
	}
	var listed protocol.ListResult
	c.must("process/list", object{}, &listed)
	rig.Is(t, len(listed.Processes) == 2 && listed.Processes[0].Argv[0] == "tool", true, "listed as %+v", listed)
}

// lines is a log.
type lines struct{ rig.Transcript }

// decided returns the lines about commands, without what differs from run to run.
func (l *lines) decided() (all []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "command decided") {
			_, line, _ = strings.Cut(line, "session=")
			all = append(all, regexp.MustCompile(`^\S+ |pid=[1-9]\d* |\n|/usr`).ReplaceAllString(line, ""))
		}
	}
	return all
}

// TestDecidedTold: log and metrics have what was refused, asked about or let through, by program
// and rule, and no argument or variable; nor what was simply allowed.
func TestDecidedTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.rules"), []byte(`prefix_rule(["cat"], "forbidden", justification = "no")
prefix_rule(["id"], "prompt")
prefix_rule(["rm"], "allow")
`), 0o600); err != nil {
		t.Fatal(err)
	}
	rules := rig.Value(execpolicy.Load(dir))
	const secret = "hunter2"
	start := func(argv ...string) object {
		params := sh("p", "")
		params["argv"], params["env"] = argv, object{"PATH": "/usr/bin", "KEY": secret}
		return params
	}
	client := func(params object) object {
		params["execApproval"] = object{"rules": []object{{"name": dir + "/" + secret, "text": `prefix_rule(["uname", "` + secret + `"], "forbidden")`}}}
		return params
	}
	script := func(text string) object { return start("/bin/sh", "-c", text) }
	cat, id := "rule="+dir+"/a.rules:1:12", "rule="+dir+"/a.rules:2:12"
	for _, tt := range []struct {
		name    string
		able    bool // the client answers questions
		unasked bool // what prompts may run where nobody can be asked
		params  object
		answer  string
		want    []string
	}{
		{"allowed", true, false, script("rm -f " + secret + "; :"), "", nil},
		{"start", true, false, start("cat", secret), "", []string{"kind=start program=/bin/cat pid=0 " + cat + " outcome=refused"}},
		{"words that name no program", true, false, start("cat " + secret), "", nil},
		{"script", true, false, script("echo " + secret + " | cat"), "", []string{"kind=start program=/bin/sh pid=0 " + cat + " outcome=refused"}},
		{"accepted", true, false, start("id", secret), `"accept"`, []string{"kind=start program=/bin/id pid=0 " + id + " outcome=accepted"}},
		{"declined", true, false, start("id", secret), `"decline"`, []string{"kind=start program=/bin/id pid=0 " + id + " outcome=declined"}},
		{"nobody", false, false, start("id", secret), "", []string{"kind=start program=/bin/id pid=0 " + id + " outcome=unanswered"}},
		{"unasked", false, true, start("id", secret), "", []string{"kind=start program=/bin/id pid=0 " + id + " outcome=unasked"}},
		{"below", true, false, script("c=cat; $c " + secret + "; :"), "", []string{"kind=exec program=/bin/cat " + cat + " outcome=refused"}},
		{"asked below", true, false, script("i=id; $i " + secret + "; :"), `"accept"`, []string{"kind=exec program=/bin/id " + id + " outcome=accepted"}},
		{"asked once", true, false, script("i=id; $i -u; $i -u; :"), `"acceptForProcess"`, []string{"kind=exec program=/bin/id " + id + " outcome=accepted"}},
		{"nobody below", false, false, script("i=id; $i " + secret + "; :"), "", []string{"kind=exec program=/bin/id " + id + " outcome=unanswered"}},
		{"client's", true, false, client(script("u=uname; $u " + secret + "; :")), "", []string{"kind=exec program=/bin/uname rule=client outcome=refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log lines
			set := NewMetrics()
			r := newHarness(t, Config{
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: set,
				ExecPolicy: inForce(execpolicy.NewCurrent(&execpolicy.Policy{Rules: rules, Enforce: execpolicy.InTree, AllowUnasked: tt.unasked}, nil)),
			})
			c := r.raw(t)
			if tt.able {
				c, _, _ = r.asking(t, "")
			}
			c.call("s", "process/start", tt.params)
			c.toEnd(func(heard) string { return tt.answer })
			rig.Same(t, "the log", tt.want, log.decided())
			rig.Is(t, strings.Contains(log.String(), secret), false, "the secret is in\n%s", log.String())
			answer := httptest.NewRecorder()
			set.ServeHTTP(answer, nil)
			counted := regexp.MustCompile(`agent_commands_decided_total\{kind="(\w+)",outcome="(\w+)"\} ([1-9]\d*)\n`).FindAllStringSubmatch(answer.Body.String(), -1)
			rig.Is(t, len(counted), len(tt.want), "counted %q", counted)
			for i, m := range counted {
				if want := fmt.Sprintf("kind=%s ", m[1]); !strings.HasPrefix(tt.want[i], want) || !strings.HasSuffix(tt.want[i], "="+m[2]) || m[3] != "1" {
					t.Errorf("counted %q", m)
				}
			}
		})
	}
}
