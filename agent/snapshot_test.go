package agent

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// bashHome is a home with this startup file for bash, without which the test is skipped.
func bashHome(t testing.TB, profile string) string {
	t.Helper()
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip(err)
	}
	home, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err, os.WriteFile(home+"/.bash_profile", []byte(profile), 0o600))
	return home
}

// login returns the params of a start of a login shell with a snapshot.
func login(id, home, command string, more object) object {
	params := object{
		"processId": id, "argv": []string{"/bin/bash", "-lc", command}, "cwd": uri(home), "env": object{"HOME": home, "PATH": "/usr/bin:/bin"}, "tty": false,
		"shellSnapshot": object{"scopeId": "s", "shell": object{"name": "bash", "path": "/bin/bash"}},
	}
	maps.Copy(params, more)
	return params
}

// output runs a command to its end and returns what it prints.
func output(c *client, params object) string {
	c.t.Helper()
	c.must("process/start", params, nil)
	c.awaitNote("process/closed", params["processId"].(string))
	return c.output(params["processId"].(string))
}

// TestSnapshots: startup files run once for a session, outside a sandbox and in one, where
// they can do no more than the command; process/list shows the command as it was sent.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	for name, sandbox := range map[string]func(home string) object{
		"none":       func(string) object { return nil },
		"writes":     func(home string) object { return managed("restricted", special("root", "read"), at(home, "write")) },
		"view":       func(home string) object { return managed("restricted", special("minimal", "read"), at(home, "write")) },
		"network":    func(home string) object { return managed("enabled", special("root", "read"), at(home, "write")) },
		"everything": func(string) object { return managed("restricted", special("root", "write")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			profile := "echo run >> ~/runs; export A=1; f() { echo \"f$1\"; }; echo noise\necho x 2>/dev/null > $HOME.outside\ntrue\n"
			if name != "none" && name != "everything" { // there it would be the agent
				profile = "kill -9 $PPID 2>/dev/null\n" + profile
			}
			home := bashHome(t, profile)
			outside := home + ".outside"
			t.Cleanup(func() { _ = os.Remove(outside) })
			more := object{"sandbox": sandbox(home)}
			c := newHarness(t, Config{}).attach("")
			for i, id := range []string{"a", "b"} {
				rig.Is(t, output(c, login(id, home, "f $A; wc -l < ~/runs", more)), "f1\n1\n", "start %d printed", i)
			}
			var listed protocol.ListResult
			c.must("process/list", object{}, &listed)
			rig.Is(t, strings.Join(listed.Processes[0].Argv, "|"), "/bin/bash|-lc|f $A; wc -l < ~/runs", "listed as")
			writes := name == "none" || name == "everything"
			rig.Is(t, rig.Err(os.Stat(outside)) == nil, writes, "the startup file has written outside")
		})
	}
}

// TestSnapshotVariables: the variables of one request reach no other command by a snapshot, unless
// startup files have made something of them; nor do functions and options in variables.
func TestSnapshotVariables(t *testing.T) {
	t.Parallel()
	home := bashHome(t, "echo run >> ~/runs; export MADE=\"made of $GIVEN\"\n")
	c := newHarness(t, Config{Environ: []string{"PATH=/usr/bin:/bin", "BOTH=agent"}}).attach("")
	const tell = `echo "$ONCE|$MADE|$BOTH|$(type -t f)|$-|$(wc -l < ~/runs)"`
	for i, tt := range []struct {
		env  object
		want string
	}{
		{object{"ONCE": "secret", "GIVEN": "it", "BOTH": "first"}, "secret|made of it|first||hBc|1\n"},
		{object{}, "|made of it|agent||hBc|1\n"},
		{object{"BASH_FUNC_f%%": "() { :; }"}, "|made of |agent|function|hBc|2\n"},
		{object{"SHELLOPTS": "noglob"}, "|made of |agent||fhBc|3\n"},
		{object{}, "|made of it|agent||hBc|3\n"},
	} {
		env := object{"HOME": home}
		maps.Copy(env, tt.env)
		policy := object{"inherit": "all", "ignoreDefaultExcludes": true, "exclude": []string{}, "set": object{}, "includeOnly": []string{}}
		rig.Is(t, output(c, login(fmt.Sprint(i), home, tell, object{"env": env, "envPolicy": policy})), tt.want, "command %d printed", i)
	}
}

// TestSnapshotFails: where a startup file leaves no state, a command with a snapshot does what it
// does without one, and so it does where the state is a strange one.
func TestSnapshotFails(t *testing.T) {
	t.Parallel()
	for shell, file := range map[string]string{"sh": ".profile", "bash": ".bash_profile", "zsh": ".zprofile"} {
		path := "/bin/" + shell
		if _, err := os.Stat(path); err != nil {
			t.Log(err)
			continue
		}
		if shell != "bash" && !rig.Runs(rig.Merge) {
			continue // package snapshot tries all of them
		}
		for _, text := range []string{
			"exit 3", "kill -9 $$", "exec >&-", "exec cat", "set -n", "ulimit -n 4", "set -e; false", "readonly HOME", "export PATH=/nowhere", "setsid true & wait",
		} {
			t.Run(shell+" "+text, func(t *testing.T) {
				t.Parallel()
				home := t.TempDir()
				rig.Must(t, os.WriteFile(home+"/"+file, []byte("export A=1\n"+text+"\n"), 0o600))
				c := newHarness(t, Config{}).attach("")
				// Two streams have no order between them.
				start := func(id string, more object) string {
					params := login(id, home, `echo "[$A]"; exit 7`, more)
					params["argv"].([]string)[0] = path
					return strings.Join(slices.Sorted(strings.Lines(output(c, params))), "")
				}
				snapshot := object{"scopeId": "s", "shell": object{"name": shell, "path": path}}
				want := start("without", object{"shellSnapshot": nil})
				rig.Is(t, start("with", object{"shellSnapshot": snapshot}), want, "with a snapshot")
			})
		}
	}
}

// TestSnapshotEnds: a session that ends while a startup file loops does not wait for it.
func TestSnapshotEnds(t *testing.T) {
	t.Parallel()
	home := bashHome(t, "trap '' TERM INT HUP\n: > ~/begun\nwhile :; do sleep 1000; done\n")
	rig.Must(t, syscall.Mkfifo(home+"/begun", 0o600))
	r := newHarness(t, Config{})
	c := r.attach("")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_ = c.call("process/start", login("a", home, "true", nil), nil) // the session ends first
	}()
	if _, err := os.ReadFile(home + "/begun"); err != nil { // the startup file runs
		t.Fatal(err)
	}
	rig.Must(t, r.agent.Close())
	waitFor(t, answered, "the answer")
}

// TestSnapshotNetwork: each command has a proxy of its own, also one that restores a
// snapshot, whose capture had another one. A process without one has another state, too.
func TestSnapshotNetwork(t *testing.T) {
	t.Parallel()
	destination := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer destination.Close()
	home := bashHome(t, "echo run >> ~/runs; echo $HTTP_PROXY >> ~/captured\n")
	c := newHarness(t, Config{}).attach("")
	var hosts []string
	for _, id := range []string{"a", "b"} {
		params := login(id, home, printProxy, object{"pipeStdin": true})
		params["networkProxy"] = proxied(id, "", "localhost", "127.0.0.1")["networkProxy"]
		proxy := c.proxyOf(t, params)
		wantThrough(t, proxy, destination.URL, http.StatusOK, "")
		hosts = append(hosts, proxy.Host)
	}
	rig.Is(t, output(c, login("c", home, `echo "[$HTTP_PROXY]"`, nil)), "[]\n", "without a proxy")
	captured, err := os.ReadFile(home + "/captured")
	if err != nil || hosts[0] == hosts[1] || strings.Count(string(captured), "\n") != 2 || !strings.HasSuffix(string(captured), "\n\n") {
		t.Errorf("the proxies are %q, of the capture %q, %v", hosts, captured, err)
	}
}

// TestSnapshotJudged: what startup files execute is judged when their state is captured, too, and
// nobody is asked about it: they are run with the command then.
func TestSnapshotJudged(t *testing.T) {
	t.Parallel()
	policy := execpolicy.NewCurrent(policyOf(t, `prefix_rule(["tac"], "forbidden")
prefix_rule(["uname"], "prompt")
`, inTree), nil)
	for name, sandbox := range map[string]func(home string) object{
		"bare":    func(string) object { return nil },
		"sandbox": func(home string) object { return managed("restricted", special("root", "read"), at(home, "write")) },
	} {
		for program, want := range map[string]string{"true": "ran\n", "tac": "", "uname": ""} {
			t.Run(name+" "+program, func(t *testing.T) {
				t.Parallel()
				home := bashHome(t, "echo x >> ~/runs; p="+program+"; export A=1\n/usr/bin/$p >/dev/null </dev/null && echo ran >> ~/ran\ntrue\n")
				more := object{"sandbox": sandbox(home)}
				c := newHarness(t, Config{ExecPolicy: inForce(policy)}).attach("")
				for _, id := range []string{"a", "b"} {
					got := output(c, login(id, home, "echo $A", more))
					rig.Is(t, strings.Contains(got, "1\n"), true, "%s printed %q", id, got)
				}
				ran, _ := os.ReadFile(home + "/ran")
				runs, _ := os.ReadFile(home + "/runs")
				if string(ran) != want || program != "uname" && string(runs) != "x\n" || program == "uname" && len(runs) < len("x\nx\nx\n") {
					t.Errorf("the startup file has run %q times, and the program %q", runs, ran)
				}
			})
		}
	}
}

// TestSnapshotUnasked: nobody is asked about what startup files reach while their state is
// captured, since the client knows of no process then. They run with the command, and it is asked.
func TestSnapshotUnasked(t *testing.T) {
	t.Parallel()
	profile := `export A=1; echo run >> ~/runs; p=${HTTP_PROXY#http://}
exec 3<>/dev/tcp/${p%:*}/${p#*:}
printf 'GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n' >&3
read -r line <&3; exec 3>&-; echo "$line" >> ~/answers
`
	home := bashHome(t, profile)
	var log bytes.Buffer
	r := newHarness(t, Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	c, _, _ := r.asking(t, "")
	params := login("a", home, "echo $A", nil)
	params["networkProxy"] = proxied("a", "")["networkProxy"]
	c.call("s", "process/start", params)
	q, _ := c.until(protocol.MethodNetworkPolicyRequest)
	rig.Is(t, string(rig.Value(os.ReadFile(home+"/runs"))), "run\nrun\n", "asked for the snapshot, the startup file has run")
	c.send(`{"id":%s,"result":{"decision":{"type":"deny","reason":"no"}}}`, q.ID)
	_, got, _ := c.ends()
	rig.Is(t, got, "1\n", "printed")
	runs, err := os.ReadFile(home + "/runs")
	answers, _ := os.ReadFile(home + "/answers")
	if err != nil || string(runs) != "run\nrun\n" || !strings.HasSuffix(string(answers), " 403 Forbidden\r\n") {
		t.Errorf("the startup file has run %q, and read %q; %v", runs, answers, err)
	}
	rig.Check(t, r.agent.Close()) // nothing is logged any more
	for _, line := range []string{`msg="snapshot started" .*program=bash`, `msg="snapshot ended" .*program=bash`, `msg="no shell snapshot" .*have to be asked`} {
		rig.Is(t, regexp.MustCompile(line).Match(log.Bytes()), true, "%s is in the log\n%s", line, log.Bytes())
	}
}

// TestSnapshotPending: nothing of a command runs before it was accepted, its startup files
// included.
func TestSnapshotPending(t *testing.T) {
	t.Parallel()
	home := bashHome(t, "echo run >> ~/runs\n")
	c, _, _ := newHarness(t, Config{}).asking(t, "")
	for _, answer := range []string{`"decline"`, `"accept"`} {
		params := login(answer, home, "wc -l < ~/runs", object{"execApproval": object{"unmatched": "prompt"}})
		c.call("s"+answer[1:2], "process/start", params)
		h, _ := c.until(protocol.MethodExecApproval)
		rig.Is(t, rig.Err(os.Stat(home+"/runs")), fs.ErrNotExist, "a trace of startup files before the answer")
		c.replies(h, answer)
		c.toEnd(func(heard) string { return answer }) // an accepted command asks about its programs
	}
	rig.Is(t, string(rig.Value(os.ReadFile(home+"/runs"))), "run\n", "startup files have run")
}
