package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// asking returns a client that answers questions about commands, and the id of its session.
func (r *harness) asking(t *testing.T, session string) (c *raw, id string, lose func()) {
	t.Helper()
	more := object{"subcommandApprovals": true}
	if session != "" {
		more["resumeSessionId"] = session
	}
	return r.opens(t, more)
}

// heard is what a server says in these tests.
type heard struct {
	ID     json.RawMessage
	Method string
	Result struct{ Approval, Status string }
	Error  *protocol.Error
	Params struct {
		protocol.ExecApprovalParams
		Seq      uint64
		Chunk    []byte
		Stream   string
		ExitCode int
		Decision string
		Source   string
		Rule     string
		Refusals *protocol.Refusals
	}
}

func (c *raw) hears() (h heard) {
	c.t.Helper()
	text := c.Next(c.t)
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		c.t.Fatalf("%s: %v", text, err)
	}
	return h
}

// until reads to a message of that method, and returns it and the methods before it.
func (c *raw) until(method string) (h heard, before []string) {
	c.t.Helper()
	for {
		if h = c.hears(); h.Method == method {
			return h, before
		}
		before = append(before, h.Method)
	}
}

// prompts is a start of a shell that the client wants to be asked about.
func prompts(id, command string, change object) object {
	params := sh(id, command)
	params["execApproval"] = object{"unmatched": "prompt"}
	maps.Copy(params, change)
	return params
}

// asks starts a process and returns the question about it, which comes after the answer.
func (c *raw) asks(params object) heard {
	c.t.Helper()
	c.call("s", "process/start", params)
	if h := c.hears(); h.Result.Approval != protocol.ApprovalPending {
		c.t.Fatalf("the start was answered with %+v", h)
	}
	q := c.hears()
	if q.Method != protocol.MethodExecApproval || q.Params.ApprovalID == "" || q.Params.AfterSeq != 0 {
		c.t.Fatalf("the question is %+v", q)
	}
	return q
}

// toEnd reads to the end of a process, or to an error, and answers what is asked if answer is not
// nil. It returns all that it has heard.
func (c *raw) toEnd(answer func(q heard) string) (all []heard) {
	c.t.Helper()
	for {
		h := c.hears()
		all = append(all, h)
		switch {
		case h.Method == protocol.MethodExecApproval && answer != nil:
			c.replies(h, answer(h))
		case h.Method == protocol.MethodProcessClosed || h.Error != nil:
			return all
		}
	}
}

// ends reads to the end of a process, and returns its code and what it has printed.
func (c *raw) ends() (code int, output string, closed []string) {
	c.t.Helper()
	for _, h := range c.toEnd(nil) {
		switch h.Method {
		case protocol.MethodProcessOutput:
			output += string(h.Params.Chunk)
		case protocol.MethodExecApprovalClosed:
			closed = append(closed, h.Params.Reason)
		case protocol.MethodProcessExited:
			code = h.Params.ExitCode
		case "":
			if h.Error != nil {
				c.t.Fatal(h.Error)
			}
		}
	}
	return code, output, closed
}

func (c *raw) replies(q heard, decision string) {
	c.t.Helper()
	c.send(`{"id":%s,"result":{"decision":%s}}`, q.ID, decision)
}

// TestQuestion: a command that a policy prompts for runs if the client says so, and does not
// otherwise.
func TestQuestion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, answer string
		change       object
		code         int
		output       string
	}{
		{"accept", `"accept"`, nil, 3, "input\n"},
		{"accept for the process", `"acceptForProcess"`, nil, 3, "input\n"},
		{"accept with a rule", `{"acceptWithRule":{"prefix":["/bin/sh","-c"]}}`, nil, 3, "input\n"},
		{"a terminal", `"accept"`, object{"tty": true}, 3, "input\r\ninput\r\n"},
		{"in a sandbox", `"accept"`, object{"sandbox": readOnly}, 3, "input\n"},
		{"decline", `"decline"`, nil, 126, "rejected by user\n"},
		{"decline in a sandbox", `"decline"`, object{"sandbox": readOnly}, 126, "rejected by user\n"},
		{"an unknown word", `"maybe"`, nil, 126, "rejected by user\n"},
		{"no prefix", `{"acceptWithRule":{}}`, nil, 126, "rejected by user\n"},
		{"not found", `"accept"`, object{"argv": []string{"no-such-program"}}, 127, "no-such-program"},
		{"not executable", `"accept"`, object{"argv": []string{"/etc/passwd"}}, 126, "permission denied"},
		{"a directory that is gone", `"accept"`, object{"cwd": "file:///no/such/dir"}, 126, "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, Config{}).asking(t, "")
			q := c.asks(prompts("p", "read x; echo $x; exit 3", tt.change))
			c.call("w", "process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("input\n")})
			var echo strings.Builder
			h := c.hears()
			for ; h.Method == protocol.MethodProcessOutput; h = c.hears() { // a terminal may show it at once
				echo.WriteString(string(h.Params.Chunk))
			}
			rig.Is(t, h.Result.Status, string(protocol.WriteAccepted), "writing while it is pending")
			c.replies(q, tt.answer)
			code, output, closed := c.ends()
			if output = echo.String() + output; code != tt.code || !strings.Contains(output, tt.output) || closed != nil {
				t.Errorf("code %d, output %q, closed %q; want %d and %q", code, output, closed, tt.code, tt.output)
			}
		})
	}
}

// TestQuestionEnds: a question ends with its process, with its time, and with who could answer it;
// the client hears of that before it hears that the process has exited.
func TestQuestionEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change object
		end    func(c *raw, q heard)
		code   int
		closed string
	}{
		{"terminated", nil, func(c *raw, _ heard) { c.call("t", "process/terminate", object{"processId": "p"}) }, 137, "terminated"},
		{"signalled", nil, func(c *raw, _ heard) {
			c.call("t", "process/signal", object{"processId": "p", "signal": "interrupt"})
		}, 137, "terminated"},
		{"its time", object{"execApproval": object{"unmatched": "prompt", "timeoutMs": 1000}}, func(*raw, heard) {}, 126, "timeout"},
		{"cancelled", nil, func(c *raw, q heard) { c.replies(q, `"cancel"`) }, -1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, Config{}).asking(t, "")
			q := c.asks(prompts("p", "echo no", tt.change))
			tt.end(c, q)
			code, output, closed := c.ends()
			if tt.code >= 0 && code != tt.code || strings.Contains(output, "no\n") && !strings.Contains(output, "rejected") || strings.Join(closed, " ") != tt.closed {
				t.Errorf("code %d, output %q, closed %q; want %d and %q", code, output, closed, tt.code, tt.closed)
			}
			c.replies(q, `"accept"`) // too late
			c.call("l", "process/read", object{"processId": "p"})
			c.hears()
		})
	}
}

// TestQuestionAgain: who comes back is asked what is still open, under its id; a client that does
// not answer questions is not, and the question is refused.
func TestQuestionAgain(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	c, session, lose := r.asking(t, "")
	first := c.asks(prompts("p", "echo y''es", nil))
	lose()
	c, _, lose = r.asking(t, session)
	second, _ := c.until(protocol.MethodExecApproval)
	rig.Is(t, second.Params.ApprovalID, first.Params.ApprovalID, "asked as %s, and again as", first.Params.ApprovalID)
	lose()
	old, _ := r.resume(t, session)
	code, output, _ := old.ends()
	rig.Is(t, code == 126 && !strings.Contains(output, "yes\n"), true, "code %d, output %q", code, output)
}

// TestQuestionTaken: of two clients that answer one question differently the one counts that has
// the session then; the other has been told that it has it no longer, and what it says is nothing.
func TestQuestionTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		first string // the answer before the session is taken; "": it comes afterwards
		code  int
	}{
		{"the first answers too late", "", 126},
		{"the second comes too late", `"accept"`, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newHarness(t, Config{})
			named := object{"subcommandApprovals": true, "sessionName": "n", "take": true}
			first, _, _ := r.opens(t, named)
			q := first.asks(prompts("p", "read go; exit 3", nil))
			if tt.first != "" {
				first.replies(q, tt.first)
				first.until(protocol.MethodExecDecision) // it has been heard
			}
			second, _, _ := r.opens(t, named)
			first.until(protocol.MethodSessionTaken)
			if tt.first == "" {
				again, _ := second.until(protocol.MethodExecApproval)
				rig.Is(t, again.Params.ApprovalID, q.Params.ApprovalID, "asked as %s and", q.Params.ApprovalID)
				_ = first.Write(fmt.Appendf(nil, `{"id":%s,"result":{"decision":"accept"}}`, q.ID)) // the agent may have hung up
				second.replies(again, `"decline"`)
			}
			second.call("w", "process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("go\n")})
			for _, h := range second.toEnd(nil) {
				rig.Is(t, h.Method == protocol.MethodExecApproval, false, "the second client is asked once more")
				if h.Method == protocol.MethodProcessExited {
					rig.Is(t, h.Params.ExitCode, tt.code, "code")
				}
			}
		})
	}
}

// TestQuestionReports: a client hears what was decided, as much as it wants.
func TestQuestionReports(t *testing.T) {
	t.Parallel()
	for report, want := range map[string]string{"": "allow approval", protocol.ReportRefused: "", protocol.ReportAll: "allow approval"} {
		t.Run(report, func(t *testing.T) {
			t.Parallel()
			approval := object{"unmatched": "prompt"}
			if report != "" {
				approval["report"] = report
			}
			c, _, _ := newHarness(t, Config{}).asking(t, "")
			q := c.asks(prompts("p", "true", object{"execApproval": approval}))
			c.replies(q, `"accept"`)
			var got []string
			for _, h := range c.toEnd(nil) {
				if h.Method == protocol.MethodExecDecision {
					got = append(got, h.Params.Decision+" "+h.Params.Source+h.Params.Rule)
				}
			}
			rig.Is(t, strings.Join(got, ";"), want, "heard")
		})
	}
}

// readOnly is a sandbox in which nothing can be written.
var readOnly = managed("enabled", special("root", "read"))

// treeRules are those of an operator who has every program judged.
func treeRules(t *testing.T) Config {
	t.Helper()
	policy := policyOf(t, `prefix_rule(["cat"], "forbidden")
prefix_rule([["id", "uname"]], "prompt")
`, inTree)
	return Config{ExecPolicy: inForce(execpolicy.NewCurrent(policy, nil))}
}

// TestQuestionBelow: the client is asked about what a process executes, and hears of what is
// refused, with a sandbox and without one.
func TestQuestionBelow(t *testing.T) {
	t.Parallel()
	for name, sandbox := range map[string]object{"bare": nil, "sandbox": readOnly} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, treeRules(t)).asking(t, "")
			params := sh("p", `i=id c=cat; (exec $c /dev/null); echo $?
n=0; while [ $n -lt 3 ]; do $i >/dev/null; echo $?; n=$((n+1)); done
u=uname; bash -c "exec -a id $u" 2>/dev/null
sh -c "$i -g" >/dev/null; echo $?`)
			params["sandbox"] = sandbox
			c.call("s", "process/start", params)
			answers := []string{`"decline"`, `"acceptForProcess"`, `"decline"`, `"accept"`}
			var asked, told []string
			var output strings.Builder
			answer := func(q heard) string {
				rig.Is(t, q.Params.Kind == protocol.ApprovalExec && q.Params.PID != 0, true, "asked %+v", q.Params)
				asked = append(asked, strings.Join(q.Params.Argv, " "))
				return answers[min(len(asked)-1, 3)]
			}
			for _, h := range c.toEnd(answer) {
				rig.Is(t, h.Error, nil, "the answer")
				output.Write(h.Params.Chunk)
				if h.Method == protocol.MethodExecDecision {
					told = append(told, h.Params.Decision+" "+h.Params.Source+" "+h.Params.Rule)
				}
			}
			lines := strings.Fields(output.String())
			rig.Is(t, strings.Join(asked, ";"), "id;id;id;id -g", "asked")
			want := "forbidden rule client;forbidden approval client;allow approval client;forbidden approval client;allow approval client"
			rig.Is(t, strings.Join(slices.Compact(told), ";"), want, "told")
			rig.Is(t, slices.Contains(lines, "126") && slices.Contains(lines, "0"), true, "output %q", output.String())
		})
	}
}

// TestAcceptedFile: who has accepted a program for the process has accepted the file, not what is
// put in its place later.
func TestAcceptedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"tool", "linked"} {
		rig.Must(t, rig.WriteProgram(dir+"/"+name, []byte("#!/bin/sh\necho one\n")))
	}
	operator := policyOf(t, `prefix_rule([["/bin/sh", "/usr/bin/sh", "/usr/bin/dash", "ln"]])`, inTree)
	operator.Unmatched = rule.Prompt
	for answer, script := range map[string]string{
		`"acceptForProcess"`: "./tool; ./tool; echo 'echo two' >> tool; ./tool",
		`{"acceptWithRule":{"prefix":["` + dir + `/linked"]}}`: "ln -s linked link; ./link; ./link; ln -sf tool link; ./link",
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(operator, nil))}).asking(t, "")
			params := sh("p", script)
			params["cwd"] = uri(dir)
			c.call("s", "process/start", params)
			var asked []string
			var output strings.Builder
			all := c.toEnd(func(q heard) string {
				if q.Params.Kind == protocol.ApprovalStart {
					return `"accept"`
				}
				if asked = append(asked, q.Params.Exe); len(asked) == 1 {
					return answer
				}
				return `"decline"`
			})
			for _, h := range all {
				if h.Params.Stream == "stdout" {
					output.Write(h.Params.Chunk)
				}
			}
			rig.Is(t, len(asked), 2, "asked about %q", asked)
			rig.Is(t, output.String(), "one\none\n", "output")
		})
	}
}

// TestAcceptedCommand: who has accepted a command has accepted what the question has shown: this file,
// in this folder, with these arguments, as often as it stands in the script.
func TestAcceptedCommand(t *testing.T) {
	t.Parallel()
	operator := policyOf(t, `prefix_rule([["sh", "bash"]])`, inTree)
	operator.Unmatched = rule.Prompt
	for _, row := range rig.Rows(t, "testdata/accepted.txt", "commands", 5) {
		script, answer := row[1], row[2]
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, d := range []string{"o", "p"} {
				rig.Must(t, os.Mkdir(dir+"/"+d, 0o755))
			}
			for file, text := range map[string]string{
				"tool": "echo $1", "o/tool": "echo evil", "go": "t=tool; ./$t x", "there": "t=tool; cd o; ../$t x", "evil": "t=tool; ./o/$t x",
				"named": "t=alias; ./$t x", "twice": "t=tool; ./$t x; ./$t x; cd o; ../$t x",
			} {
				rig.Must(t, rig.WriteProgram(dir+"/"+file, []byte("#!/bin/sh\n"+text+"\n")))
			}
			rig.Must(t, os.Symlink("tool", dir+"/alias"))
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(operator, nil))}).asking(t, "")
			params := sh("p", script)
			if answer == "change" { // it is the program of the start itself
				params["argv"] = strings.Fields(script)
			}
			params["cwd"] = uri(dir)
			c.call("s", "process/start", params)
			var asked, output []string
			for _, h := range c.toEnd(func(q heard) string {
				start := q.Params.Kind == protocol.ApprovalStart
				what := strings.TrimPrefix(q.Params.Exe, dir+"/")
				if !start {
					what += " " + q.Params.Argv[1]
				}
				asked = append(asked, what)
				switch {
				case answer == "rule":
					return `{"acceptWithRule":{"prefix":["./tool"]}}`
				case answer == "change":
					rig.Must(t, rig.WriteProgram(dir+"/tool", []byte("#!/bin/sh\necho changed\n")))
				case answer == "below" != start && answer != "accept":
					return `"acceptForProcess"`
				}
				return `"accept"`
			}) {
				if h.Params.Stream == "stdout" {
					output = append(output, strings.Fields(string(h.Params.Chunk))...)
				}
			}
			rig.Is(t, strings.ReplaceAll(strings.Join(asked, ";"), "/usr/bin/dash", "/bin/sh"), row[3], "asked")
			rig.Is(t, strings.Join(output, " "), row[4], "output")
		})
	}
}

// TestAcceptedProgram: what was asked about is what runs, also if another program of the name comes
// before it in the PATH while the client thinks.
func TestAcceptedProgram(t *testing.T) {
	t.Parallel()
	for name, sandbox := range map[string]object{"bare": nil, "sandbox": readOnly} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tool := func(at string) {
				rig.Check(t, rig.WriteProgram(dir+"/"+at+"/tool", []byte("#!/bin/sh\necho "+at+"\n")))
			}
			for _, at := range []string{"first", "second"} {
				rig.Must(t, os.Mkdir(dir+"/"+at, 0o700))
			}
			tool("second")
			c, _, _ := newHarness(t, Config{}).asking(t, "")
			params := prompts("p", "", object{"argv": []string{"tool"}, "env": object{"PATH": dir + "/first:" + dir + "/second:/usr/bin:/bin"}})
			params["sandbox"] = sandbox
			c.call("s", "process/start", params)
			h, _ := c.until(protocol.MethodExecApproval)
			tool("first")
			c.replies(h, `"accept"`)
			ran, _ := c.until(protocol.MethodProcessOutput)
			rig.Is(t, h.Params.Exe, dir+"/second/tool", "asked about")
			rig.Is(t, string(ran.Params.Chunk), "second\n", "output")
			c.until(protocol.MethodProcessClosed)
		})
	}
}

// TestQuestionBelowEnds: a process that is ended while one of its programs is asked about leaves
// nothing open, and nothing running.
func TestQuestionBelowEnds(t *testing.T) {
	t.Parallel()
	c, _, _ := newHarness(t, treeRules(t)).asking(t, "")
	c.call("s", "process/start", sh("p", "i=id; $i"))
	c.until(protocol.MethodExecApproval)
	c.call("t", "process/terminate", object{"processId": "p"})
	code, _, closed := c.ends()
	rig.Is(t, code == 137 && strings.Join(closed, " ") == "terminated", true, "code %d, closed %q", code, closed)
}

// TestClientRulesBelow: rules of a client hold for what its process executes, too, whether the
// operator has none, has them asked at the start only, or has them asked everywhere. They do not
// loosen what the operator's say.
func TestClientRulesBelow(t *testing.T) {
	t.Parallel()
	starting := *treeRules(t).ExecPolicy.current.Policy()
	starting.Enforce = execpolicy.AtStart
	for name, config := range map[string]Config{"no operator": {}, "start": {ExecPolicy: inForce(execpolicy.NewCurrent(&starting, nil))}, "tree": treeRules(t)} {
		for box, sandbox := range map[string]object{"bare": nil, "sandbox": readOnly} {
			t.Run(name+", "+box, func(t *testing.T) {
				t.Parallel()
				c := newHarness(t, config).raw(t)
				params := sh("p", "h=head c=cat; (exec $h /dev/null); echo head=$?; (exec $c /dev/null); echo cat=$?; (exec true); echo true=$?")
				params["execApproval"] = object{"rules": []object{{"name": "mine", "text": `prefix_rule(pattern=["head"], decision="forbidden")
prefix_rule(pattern=["cat"])`}}}
				params["sandbox"] = sandbox
				c.call("s", "process/start", params)
				cat := "cat=0"
				if name == "tree" {
					cat = "cat=126"
				}
				if code, output, _ := c.ends(); code != 0 || !strings.Contains(output, "head=126") || !strings.Contains(output, cat) || !strings.Contains(output, "true=0") {
					t.Errorf("code %d, output %q", code, output)
				}
			})
		}
	}
}

// TestTreeUnasked: where the operator lets what prompts run unasked, that holds for what a process
// executes too, unless the client itself wants to be asked.
func TestTreeUnasked(t *testing.T) {
	t.Parallel()
	policy := *treeRules(t).ExecPolicy.current.Policy()
	policy.AllowUnasked = true
	c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(&policy, nil))}).raw(t)
	params := sh("p", "i=id u=uname; $i >/dev/null; echo id=$?; $u >/dev/null; echo uname=$?")
	params["execApproval"] = object{"rules": []object{{"name": "mine", "text": `prefix_rule(pattern=["uname"], decision="prompt")`}}}
	c.call("s", "process/start", params)
	if code, output, _ := c.ends(); code != 0 || !strings.Contains(output, "id=0") || !strings.Contains(output, "uname=126") {
		t.Errorf("code %d, output %q", code, output)
	}
}

// TestTreeNotFound: without a sandbox a client hears of a program or a directory that is not there
// as it does without rules.
func TestTreeNotFound(t *testing.T) {
	t.Parallel()
	with, without := newHarness(t, treeRules(t)).attach(""), newHarness(t, Config{}).attach("")
	for _, change := range []object{{"argv": []string{"no-such-program"}}, {"argv": []string{"./no"}}, {"argv": []string{"/etc/passwd"}}, {"cwd": "file:///no/such/dir"}} {
		params := sh("p", "true")
		maps.Copy(params, change)
		got, want := with.call("process/start", params, nil), without.call("process/start", params, nil)
		if want == nil || got == nil || got.Error() != want.Error() {
			t.Errorf("%v: got %v, want %v", change, got, want)
		}
	}
}

// policyOf returns a policy with rules in a file of this text.
func policyOf(t *testing.T, text string, change func(*execpolicy.Policy)) *execpolicy.Policy {
	t.Helper()
	p := &execpolicy.Policy{Rules: rig.Value(execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "t", Text: text}}))}
	if change != nil {
		change(p)
	}
	return p
}

// inTree has every program judged.
func inTree(p *execpolicy.Policy) { p.Enforce = execpolicy.InTree }

// TestQuestionReplaced: when the operator's rules are replaced, open questions are closed, and the
// new rules say what becomes of the commands.
func TestQuestionReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, before, after string
		change              func(*execpolicy.Policy)
		command             string
		again               bool // it is asked once more, and accepted then
		code                int
		output              string
	}{
		{"prompts", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"], "prompt", justification="new")`, nil, "echo y''es", true, 0, "yes\n"},
		{"allows", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"])`, nil, "echo y''es", false, 0, "yes\n"},
		{"forbids", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"], "forbidden", justification="no longer")`, nil, "echo y''es", false, 126, "rejected: no longer\n"},
		{"prompts below", `prefix_rule(["id"], "prompt")`, `prefix_rule(["id"], "prompt")`, inTree, "i=id; $i >/dev/null; echo $?", true, 0, "0\n"},
		{"allows below", `prefix_rule(["id"], "prompt")`, ``, inTree, "i=id; $i >/dev/null; echo $?", true, 0, "0\n"},
		{"forbids below", `prefix_rule(["id"], "prompt")`, `prefix_rule(["id"], "forbidden")`, inTree, "i=id; $i >/dev/null 2>&1; echo $?", false, 0, "126\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			current := execpolicy.NewCurrent(policyOf(t, tt.before, tt.change), nil)
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(current)}).asking(t, "")
			c.call("s", "process/start", sh("p", tt.command))
			first, _ := c.until(protocol.MethodExecApproval)
			current.Set(policyOf(t, tt.after, tt.change))
			closed, _ := c.until(protocol.MethodExecApprovalClosed)
			rig.Is(t, closed.Params.ApprovalID, first.Params.ApprovalID, "closed is")
			rig.Is(t, closed.Params.Reason, "policyChanged", "closed because")
			if tt.again {
				second := c.hears()
				if second.Method != protocol.MethodExecApproval || second.Params.ApprovalID == first.Params.ApprovalID {
					t.Fatalf("then the client hears %+v", second)
				}
				c.replies(first, `"decline"`) // too late
				c.replies(second, `"accept"`)
			}
			// What is said of a refusal comes by another pipe, before this output or after it.
			if code, output, more := c.ends(); code != tt.code || !strings.Contains(output, tt.output) || more != nil {
				t.Errorf("code %d, output %q, closed %q; want %d and %q", code, output, more, tt.code, tt.output)
			}
		})
	}
}

// TestQuestionKilled: a question about a program is closed as soon as nobody waits for it.
func TestQuestionKilled(t *testing.T) {
	t.Parallel()
	for name, sandbox := range map[string]object{"bare": nil, "sandbox": readOnly} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, treeRules(t)).asking(t, "")
			params := sh("p", "i=id; $i & read x; kill -9 $!; read y; echo end")
			params["pipeStdin"] = true
			params["sandbox"] = sandbox
			c.call("s", "process/start", params)
			q, _ := c.until(protocol.MethodExecApproval)
			c.call("x", "process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("x\n")})
			closed, before := c.until(protocol.MethodExecApprovalClosed)
			if closed.Params.ApprovalID != q.Params.ApprovalID || closed.Params.Reason != "exited" || slices.Contains(before, protocol.MethodProcessExited) {
				t.Errorf("closed %+v after %q", closed.Params, before)
			}
			c.replies(q, `"accept"`) // too late
			c.call("y", "process/write", object{"processId": "p", "writeId": "2", "chunk": []byte("y\n")})
			code, output, more := c.ends()
			rig.Is(t, code == 0 && output == "end\n" && more == nil, true, "code %d, output %q, closed %q", code, output, more)
		})
	}
}

// TestQuestionAmends: a rule with which a client accepts a command is added to those of the
// operator, unless the answer is no more than a yes.
func TestQuestionAmends(t *testing.T) {
	t.Parallel()
	unmatched := func(p *execpolicy.Policy) { p.Unmatched, p.Opaque = rule.Prompt, rule.Prompt }
	below := func(p *execpolicy.Policy) { p.Unmatched, p.Enforce = rule.Prompt, execpolicy.InTree }
	for _, tt := range []struct {
		name, rules string
		change      func(*execpolicy.Policy)
		argv        []string
		more        object
		prefix      string
		added       string // "" for none
	}{
		{"a beginning", "", unmatched, []string{"echo", "a", "b"}, nil, `["echo","a"]`, "echo a"},
		{"the whole", "", unmatched, []string{"echo", "a"}, nil, `["echo","a"]`, "echo a"},
		{"of a script", `prefix_rule(["true"])`, unmatched, []string{"sh", "-c", "true && echo a"}, nil, `["echo"]`, "echo"},
		{"no beginning", "", unmatched, []string{"echo", "a"}, nil, `["echo","b"]`, ""},
		{"longer", "", unmatched, []string{"echo", "a"}, nil, `["echo","a","b"]`, ""},
		{"nothing", "", unmatched, []string{"echo", "a"}, nil, `[]`, ""},
		{"too wide", "", unmatched, []string{"sh", "-c", "echo $HOME"}, nil, `["sh","-c"]`, ""},
		{"a rule asks", `prefix_rule(["echo"], "prompt")`, unmatched, []string{"echo", "a"}, nil, `["echo","a"]`, ""},
		{"a rule would be hidden", `prefix_rule(["echo", "b"], "forbidden")`, unmatched, []string{"/bin/echo", "a"}, nil, `["/bin/echo"]`, ""},
		{"no rule would be hidden", `prefix_rule(["cat"], "forbidden")`, unmatched, []string{"/bin/echo", "a"}, nil, `["/bin/echo"]`, "/bin/echo"},
		{"only the client asks", "", nil, []string{"echo", "a"}, object{"unmatched": "prompt"}, `["echo","a"]`, ""},
		{"below", `prefix_rule(["sh"])`, below, []string{"sh", "-c", "i=/usr/bin/id; $i -u; $i -u"}, nil, `["/usr/bin/id","-u"]`, "/usr/bin/id -u"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var added []string
			policy := policyOf(t, tt.rules, tt.change)
			current := execpolicy.NewCurrent(policy, func(prefix []string) { added = append(added, strings.Join(prefix, " ")) })
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(current)}).asking(t, "")
			params := sh("p", "")
			params["argv"], params["execApproval"] = tt.argv, tt.more
			c.call("s", "process/start", params)
			q, _ := c.until(protocol.MethodExecApproval)
			c.replies(q, `{"acceptWithRule":{"prefix":`+tt.prefix+`}}`)
			code, output, _ := c.ends()
			rig.Is(t, code, 0, "the code, with output %q", output)
			rig.Is(t, strings.Join(added, ";"), tt.added, "added")
		})
	}
}
