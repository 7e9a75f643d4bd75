package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// rules makes a folder of rules.
func rules(t *testing.T, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	rig.Must(t, os.WriteFile(filepath.Join(dir, "my.rules"), []byte(text), 0o600))
	return dir
}

var wide = &pty.Winsize{Rows: 24, Cols: 200}

const asks = "[N]o? "

// TestExecAsks: agent exec asks its user at the terminal, about the command itself and about what
// it executes.
func TestExecAsks(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["printf"], "prompt", justification = "it talks")
prefix_rule(["id"], "prompt")
`)
	url := startAgent(t, "none", "--listen", "ws://127.0.0.1:0", "--exec-policy", dir, "--exec-policy-enforce", "tree").line(t)
	t.Run("attach", func(t *testing.T) { attachAsks(t, url) })
	t.Run("interrupted", func(t *testing.T) { interruptsQuestion(t, url) })
	for name, flags := range map[string][]string{"terminal": {"-t"}, "lines": nil, "no input": {"-n"}} {
		t.Run(name, func(t *testing.T) {
			if name == "no input" {
				rig.Tier(t, rig.Merge)
			}
			t.Parallel()
			run := func(argv ...string) *user {
				t.Helper()
				return atTerminal(t, wide, append(append([]string{"exec", "--url", url}, flags...), append([]string{"--"}, argv...)...)...)
			}
			u := run("printf", "fi\x1b[2Jne")
			u.sees(t, `agent:   printf "fi\x1b[2Jne"`, asks)
			u.types(t, "what?\ryes\r") // what was pasted is no answer
			u.answers(t, "what?\r")
			u.answers(t, "yex\x7fs\r", "fi\x1b[2Jne")
			u.ends(t, 0)

			u = run("printf", "no")
			u.sees(t, "it talks:")
			u.answers(t, "n\r", "`printf no` requires approval: it talks: rejected by user\r\n")
			u.ends(t, 126)

			u = run("sh", "-c", "i=id; $i -u; $i -u; $i -g; echo code $?")
			u.sees(t, "id -u")
			u.answers(t, "a\r")
			u.sees(t, "id -g") // not -u again
			u.answers(t, "\r", "code 126\r\n")
			u.ends(t, 0)

			path, open := gate(t)
			u = run("sh", "-c", "i=id; $i & read go < "+path+"; kill -9 $!; wait $!; echo code $?")
			u.sees(t, "wants to execute")
			open()
			u.sees(t, "agent: the question no longer needs an answer\r", "code 137\r\n")
			u.ends(t, 0)
			if name != "no input" {
				typedAhead(t, url, flags)
			}
		})
	}
}

// typedAhead: what is typed before a question is for the command, and what is typed then is not.
func typedAhead(t *testing.T, url string, flags []string) {
	t.Helper()
	path, open := gate(t)
	script := `i=id; echo ready; read go < ` + path + `; $i; echo code $?; while read -r line; do echo "<$line>"; done`
	u := atTerminal(t, wide, append(append([]string{"exec", "--url", url}, flags...), "--", "sh", "-c", script)...)
	u.sees(t, "ready\r\n")
	u.types(t, "yes\ryes")
	u.sees(t, "yes\r\nyes") // the echo
	open()
	u.answers(t, "n\r", "n\r", "code 126\r\n", "<yes>\r\n")
	u.enters(t, " more\r", "<yes more>\r\n")
	u.types(t, "\x04")
	u.ends(t, 0)
}

// attachAsks: who comes to a command that was started without them is asked what it waits for.
func attachAsks(t *testing.T, url string) {
	t.Parallel()
	cmd := rig.Command(t, rig.Agent(t), "exec", "--url", url, "-d", "-i", "--name", "n", "--", "sh", "-c", "read go; i=id; $i -u; echo code $?")
	rig.Is(t, says(t, cmd), "n\n", "exec -d")
	u := atTerminal(t, wide, "attach", "--url", url, "n")
	u.sees(t, "attached to n")
	u.types(t, "go\r")
	u.answers(t, "o\r", "0\r\ncode 0\r\n")
	u.ends(t, 0)
}

// TestServedRulesHidden: no confined command of a client sees the folder with the agent's rules,
// also one that may write everything.
func TestServedRulesHidden(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["none"], "forbidden")`)
	all := sandboxOf("", protocol.NetworkRestricted, "write :root")
	eachMeans(t, func(t *testing.T, launch []string) {
		for writes, box := range map[string]*protocol.Sandbox{"folder": readOnly(filepath.Dir(dir)), "all": all} {
			t.Run(writes, func(t *testing.T) {
				t.Parallel()
				argv := append(append([]string{}, launch...), rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--exec-policy", dir)
				c := dialed(t, startProgram(t, "none", argv...).line(t))
				beside := filepath.Join(t.TempDir(), "beside")
				rig.Is(t, inside(t, c, box, "/", "/bin/sh", "-c",
					"exec 2>/dev/null; cat "+dir+"/my.rules; ls "+dir+"; true > "+dir+"/my.rules; true > "+dir+"/new.rules; echo x > "+beside+"; echo end"),
					result{"end\n", "", 0}, "the command")
				rig.Is(t, rig.Err(os.Stat(beside)) == nil, writes == "all", "a file elsewhere is there")
				rig.Is(t, rig.Err(c.FS(box).ReadFile(rig.Context(t), filepath.Join(dir, "my.rules"))) != nil, true, "a file request is refused")
			})
		}
	})
	t.Cleanup(func() { rig.Is(t, len(rig.Value(os.ReadDir(dir))), 1, "files of the folder") })
}

// interruptsQuestion: Ctrl-C ends a command that was not approved, and is a no and Ctrl-C for one
// that runs.
func interruptsQuestion(t *testing.T, url string) {
	t.Parallel()
	u := atTerminal(t, wide, "exec", "--url", url, "-t", "--", "id")
	u.answers(t, "\x03")
	u.ends(t, 137)
	u = atTerminal(t, wide, "exec", "--url", url, "-t", "--", "sh", "-c", "trap 'echo caught; exit 5' INT; i=id; $i; echo code $?; while :; do sleep 0.05; done")
	u.answers(t, "\x03", "caught\r\n")
	u.ends(t, 5)
	u = atTerminal(t, wide, "exec", "--url", url, "-t", "--", "id")
	u.answers(t, "~.\r", "ended by ~.")
	u.ends(t, 125)
	for _, answer := range []string{"n\r", "o\r", "\x03"} { // the terminal is as it was
		script := `before=$(stty -g); "$0" exec --url ` + url + ` -- id; test "$before" = "$(stty -g)" && echo restored`
		u = at(t, exec.Command("bash", "-c", script, rig.Agent(t)), wide)
		u.answers(t, answer, "restored\r\n")
		u.ends(t, 0)
	}
}

// TestQuestionJobs: a question that comes in the background leaves the terminal to the shell of the
// user, and comes to the foreground with the program; one that was stopped with it comes again, and
// half an answer is none.
func TestQuestionJobs(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["id"], "prompt")`)
	url := startAgent(t, "none", "--listen", "ws://127.0.0.1:0", "--exec-policy", dir).line(t)
	for name, run := range map[string]string{
		"exec":    "$AGENT exec --url " + url + " -- id -u",
		"sandbox": "$AGENT sandbox --exec-policy " + dir + " -- id -u",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := inShell(t)
			shellReads := func() {
				t.Helper()
				u.enters(t, "echo one $((1+1))\r", "one 2\r\n")
				u.enters(t, "o\r", "command not found\r\n")
			}
			u.enters(t, run+" &\r", "agent: a question waits until this job is in the foreground")
			shellReads()
			u.types(t, "fg; echo code $?\r")
			u.answers(t, "n\r", "rejected by user\r\n")
			u.sees(t, "code 126\r\n") // until then the program reads what is typed

			u.types(t, run+"\r")
			u.answers(t, "o\x1a", "Stopped")
			shellReads()
			u.enters(t, "bg\r", "agent: a question waits until this job is in the foreground")
			shellReads()
			u.enters(t, "fg; echo code $?\r", "id -u\r\n", asks)
			u.enters(t, "o\r", "\n0\r\ncode 0\r\n")
			u.types(t, "exit 9\r")
			u.ends(t, 9)
		})
	}
}

// TestExecAsksAgain: after SIGHUP an open question is withdrawn, and the new rules decide.
func TestExecAsksAgain(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["id"], "prompt", justification = "old")`)
	agent := rig.Start(t, exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--exec-policy", dir))
	u := atTerminal(t, wide, "exec", "--url", agent.Line(t), "--", "id", "-u")
	reread := func(text, says string) {
		t.Helper()
		rig.Must(t, os.WriteFile(filepath.Join(dir, "my.rules"), []byte(text), 0o600))
		before := strings.Count(agent.Printed.String(), says)
		rig.Must(t, agent.Process.Signal(syscall.SIGHUP))
		agent.Says(t, says, before+1)
	}
	u.sees(t, "old:", asks)
	reread("prefix_rule([\"id\"])\nx = y", "my.rules:2:5: undefined: y") // which changes nothing
	reread(`prefix_rule(["id"], "prompt", justification = "new")`, "were read again")
	u.sees(t, "the question no longer needs an answer\r", "new:", asks)
	reread(`prefix_rule(["id"], "forbidden", justification = "never")`, "were read again")
	u.sees(t, "`id -u` rejected: never\r\n")
	u.ends(t, 126)
}

// TestAmend: a rule with which the user accepts a command is in the operator's file afterwards, and
// in force at once.
func TestAmend(t *testing.T) {
	t.Parallel()
	dir := rules(t, "")
	url := startAgent(t, "none", "--listen", "ws://127.0.0.1:0", "--exec-policy", dir, "--exec-policy-unmatched", "prompt", "--exec-policy-amend").line(t)
	for _, where := range [][]string{{"exec", "--url", url}, {"sandbox", "--exec-policy", dir, "--exec-policy-unmatched", "prompt", "--exec-policy-amend"}} {
		word := where[0]
		u := atTerminal(t, wide, append(where, "--", "echo", word, "1")...)
		u.answers(t, "r 2\r", word+" 1\r\n")
		u.ends(t, 0)
		u = atTerminal(t, wide, append(where, "--", "echo", word, "2")...)
		u.sees(t, word+" 2\r\n")
		u.ends(t, 0)
	}
	want := `prefix_rule(pattern=["echo", "exec"], decision="allow")
prefix_rule(pattern=["echo", "sandbox"], decision="allow")
`
	rig.Is(t, textOf(os.ReadFile(filepath.Join(dir, "default.rules"))), want, "the file")
}

// TestSandboxAsks: agent sandbox asks its user at the terminal, in a sandbox and without one.
func TestSandboxAsks(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["id"], "prompt", justification = "who")
prefix_rule(["cat"], "forbidden")
`)
	eachSandbox(t, func(t *testing.T, enforced func(...string) *exec.Cmd) {
		sandbox := func(enforce string, argv ...string) *exec.Cmd {
			return enforced(append([]string{"--exec-policy", dir, "--exec-policy-enforce", enforce, "--"}, argv...)...)
		}
		u := at(t, sandbox("start", "id", "-u"), wide)
		u.sees(t, "who:", "agent:   id -u")
		u.answers(t, "o\r", "0\r\n")
		u.ends(t, 0)

		u = at(t, sandbox("start", "id", "-u"), wide)
		u.answers(t, "n\r", "agent: sandbox: `id -u` requires approval: who: rejected by user\r\n")
		u.ends(t, 126)

		u = at(t, sandbox("start", "cat"), wide)
		u.sees(t, "agent: sandbox: `cat` rejected")
		u.ends(t, 126)

		u = at(t, sandbox("tree", "sh", "-c", "i=id c=cat; $c /dev/null; echo code $?; $i -u; echo code $?; $i -u; $i -g; echo code $?; read x; echo got $x"), wide)
		u.sees(t, "code 126\r\n")
		u.answers(t, "a\r", "0\r\ncode 0\r\n0\r\n")
		u.answers(t, "n\r", "code 126\r\n")
		u.enters(t, "mine\r", "got mine\r\n")
		u.ends(t, 0)

		// A shell whose jobs have the terminal in turn.
		u = at(t, sandbox("tree", "env", "PS1=prompt>", "bash", "--norc", "--noprofile", "-i"), wide)
		u.sees(t, "prompt>")
		u.types(t, "id -u\r")
		u.answers(t, "o\r", "\r\n0\r\n", "prompt>")
		u.types(t, "exit 6\r")
		u.ends(t, 6)

		for enforce, want := range map[string]string{"start": "exit 126\n", "tree": "code 126\n"} {
			cmd := sandbox(enforce, "sh", "-c", "i=id; $i; echo code $?")
			if enforce == "start" {
				cmd = sandbox(enforce, "id")
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without a terminal
			r := finish(t, cmd)
			rig.Is(t, ending(r.stdout, r.code), want, "without a terminal, %s", enforce)
		}
	})
}

// TestAnswersItself: nothing answers a question but the user: neither what was typed before, nor what
// the command makes of its terminal, nor what the user's terminal types because the command has asked
// it to. The control characters that the command sets are those with which the rest of a reply is an
// answer, where the command shares the user's terminal.
func TestAnswersItself(t *testing.T) {
	t.Parallel()
	dir := rules(t, `prefix_rule(["id"], "prompt")`)
	const script = `trap '' TTOU TTIN TSTP HUP; ask() { i=id; $i -u; echo code $?; }
		stty -echo icanon kill '$'; printf '\033[?25$p'; ask
		stty kill /; printf '\033]11;?\033\\'; ask
		stty kill \; ; printf '\033[6n'; ask
		stty -icanon min 0 time 0 rows 1 cols 1; ask
		(while :; do printf '\r\033[2Kfine? '; stty sane </dev/tty; done) & ask; kill $!`
	eachSandbox(t, func(t *testing.T, sandbox func(...string) *exec.Cmd) {
		for _, flags := range [][]string{nil, {"-t"}} {
			t.Run(strings.Join(flags, ""), func(t *testing.T) {
				t.Parallel()
				u := at(t, sandbox(append(flags, "--exec-policy", dir, "--exec-policy-enforce", "tree", "--", "bash", "-c", script)...), wide)
				u.types(t, "o\ro\r") // for the command
				for _, reply := range []string{"\x1b[?25;1$y", "\x1b]11;rgb:0/0/a\x1b\\", "\x1b[1;1R", "so", ""} {
					u.sees(t, asks)
					if reply != "" {
						u.enters(t, "n"+reply+"\r", asks)
					}
					u.types(t, "n\r")
					echo := make([]byte, len("n\r\n")) // nothing is printed over the question
					rig.Must(t, rig.Err(io.ReadFull(u.screen, echo)))
					rig.Is(t, string(echo), "n\r\n", "behind the question")
					u.sees(t, "code 126\r\n")
				}
				u.ends(t, 0)
				rows, cols, err := pty.Getsize(u.ptmx.file)
				rig.Is(t, rows == int(wide.Rows) && cols == int(wide.Cols) && err == nil, true, "the user's terminal has %d, %d, %v", rows, cols, err)
			})
		}
	})
}

// TestRulesHidden: no confined command sees the folder with the rules, or changes it, wherever it
// is.
func TestRulesHidden(t *testing.T) {
	t.Parallel()
	eachMeans(t, func(t *testing.T, launch []string) {
		for _, enforce := range []string{"start", "tree"} {
			t.Run(enforce, func(t *testing.T) {
				t.Parallel()
				workspace := t.TempDir()
				dir := filepath.Join(workspace, "rules")
				rig.Must(t, os.Mkdir(dir, 0o700))
				const text = "prefix_rule([\"cat\"], \"prompt\")\n"
				rig.Must(t, os.WriteFile(dir+"/my.rules", []byte(text), 0o600))
				const script = `grep -c prefix rules/my.rules; ls rules; echo > rules/new.rules; echo > rules/my.rules; rm -f rules/my.rules; mv rules gone
					ln rules/my.rules mine; touch fine; exit 3`
				argv := append(append([]string{}, launch...), rig.Agent(t), "sandbox", "--workspace", workspace, "--exec-policy", dir, "--exec-policy-enforce", enforce,
					"--", "sh", "-c", script)
				cmd := rig.Command(t, argv[0], argv[1:]...)
				cmd.Dir = workspace
				out, _ := cmd.Output() // the code says it, too
				rig.Is(t, ending(strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()), "exit 3\n", "the command")
				rig.Check(t, rig.Err(os.Stat(workspace+"/fine")))
				rig.Is(t, len(rig.Value(os.ReadDir(dir))), 1, "the files of the folder")
				rig.Is(t, textOf(os.ReadFile(dir+"/my.rules")), text, "the rules")
			})
		}
	})
}
