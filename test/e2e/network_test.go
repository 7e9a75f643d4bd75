package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestNetworkSupervised: programs that serve and connect print under a supervisor what they print
// unconfined, where everything can be read and where a path is denied. An ordinary user's do too.
func TestNetworkSupervised(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	tools := rig.Public(t)
	launcher, agent := rig.Launcher(t, tools), filepath.Join(tools, "agent")
	install(t, map[string]string{agent: rig.Agent(t)})
	users := map[string][]string{"own user": {launcher, "--"}}
	if os.Getuid() == 0 {
		users["ordinary user"] = []string{launcher, "-uid", "1000", "--"}
	}
	for name, argv := range map[string][]string{
		"python3": {"python3", "program.py"},
		"node":    {"node", "program.js"},
		"curl":    {"sh", "-c", curlScript},
	} {
		if _, err := exec.LookPath("/usr/bin/" + name); err != nil {
			t.Log(err)
			continue
		}
		for user, launch := range users {
			t.Run(name+"/"+user, func(t *testing.T) {
				t.Parallel()
				unconfined := runNetworkProgram(t, launch, argv, func(string) []string { return nil })
				for level, sandbox := range map[string]func(work string) []string{
					"W": func(work string) []string {
						return []string{agent, "sandbox", "--workspace", work, "--network", "on", "--"}
					},
					"S": func(work string) []string { return []string{agent, "sandbox", "--policy", work + "/policy.json", "--"} },
				} {
					rig.Is(t, runNetworkProgram(t, launch, argv, sandbox), unconfined, "level %s", level)
				}
			})
		}
	}
}

// runNetworkProgram runs a program in a workspace of its own, with launch and what sandbox returns
// before its command line, and returns what it has printed.
func runNetworkProgram(t *testing.T, launch, argv []string, sandbox func(work string) []string) string {
	t.Helper()
	work := networkWorkspace(t)
	argv = slices.Concat(launch, sandbox(work), argv)
	cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
	cmd.Dir = work
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + work, "TMPDIR=" + work, "PYTHONDONTWRITEBYTECODE=1"}
	said := says(t, cmd)
	lacks(t, said, "exit ")
	return said
}

const curlScript = `: >log; python3 -u -m http.server --bind 127.0.0.1 0 >>log 2>&1 & pid=$!
until port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' log) && [ "$port" ]; do sleep 0.05; done
curl -sS http://127.0.0.1:$port/file
kill $pid`

// networkWorkspace returns a new directory that everybody may write, with the programs and with a
// policy that lets it be written and denies a path in it.
func networkWorkspace(t *testing.T) string {
	t.Helper()
	work := rig.Public(t)
	rig.Must(t, os.CopyFS(work, os.DirFS("testdata/network")), os.Mkdir(work+"/vault", 0o700), os.WriteFile(work+"/file", []byte("content\n"), 0o644))
	policy := policyIn(work, policyFile("enabled", readRoot, writeProject, strings.Replace(denySecret, "secret", "vault", 1)))
	rig.Must(t, os.WriteFile(work+"/policy.json", []byte(policy), 0o644))
	return work
}

// curlCode prints the status of a request that a command makes by way of its proxy.
const curlCode = `curl -s -m 60 -o /dev/null -w '%%{http_code}' http://%s/`

// TestNetworkPolicy: the operator's file is the ceiling of every client; SIGHUP has it read again,
// and a file with a mistake changes nothing. Commands that are nobody's are refused.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	need(t, skip, "curl")
	arrived := make(chan struct{})
	destination := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/running" {
			select {
			case arrived <- struct{}{}:
			default:
			}
		}
	}))
	defer destination.Close()
	place := strings.TrimPrefix(destination.URL, "http://")
	file := filepath.Join(t.TempDir(), "policy.toml")
	const masking = "\n[masking.m]\nenv = [\"MASKED\"]\npatterns = [\"masked_[a-z]+\"]\nurl_prefixes = [\"https://m.example\"]"
	inPlace := false
	write := func(text string) {
		t.Helper()
		if inPlace { // commands from whom the sandbox hides the file would end if it were replaced
			rig.Must(t, os.WriteFile(file, []byte(text+masking), 0o600))
			return
		}
		replace(t, file, []byte(text+masking))
	}
	write(`allow = ["127.0.0.1"]`)
	cmd := exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--network-policy", file, "--require-network-enforcement")
	cmd.Env = append(os.Environ(), "MASKED=masked_value", "COPY=a masked_value")
	agent := rig.Start(t, cmd)
	c := dialed(t, agent.Line(t))
	script := func(text string) string {
		t.Helper()
		p, err := c.Spawn(rig.Context(t), client.Spec{
			Argv: []string{"/bin/sh", "-c", text}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"},
			Sandbox: readOnly(),
			NetworkProxy: &protocol.NetworkProxy{Proxy: protocol.ProxyParams{
				Enabled: true, EnableSocks5: true, Mode: protocol.ProxyFull, Domains: map[string]string{"127.0.0.1": protocol.DomainAllow}}},
		})
		rig.Must(t, err)
		if answer := p.Started(); answer.Network == protocol.NetworkAdvisory || !slices.ContainsFunc(answer.SandboxLayers, isProxyLayer) {
			t.Errorf("nothing enforces the network: %+v", answer)
		}
		var out strings.Builder
		rig.Must(t, rig.Err(p.CopyOutput(rig.Context(t), &out, &out)))
		return out.String()
	}
	run := func() string {
		t.Helper()
		return script(fmt.Sprintf(curlCode, place))
	}
	hangUp := func(text string, says string) {
		t.Helper()
		write(text)
		before := strings.Count(agent.Printed.String(), says)
		rig.Must(t, agent.Process.Signal(syscall.SIGHUP))
		agent.Says(t, says, before+1)
	}
	rig.Is(t, run(), "200", "allowed")
	content, err := c.FS(nil).ReadFile(rig.Context(t), "/proc/self/environ") // the agent's, which an ordinary user cannot read
	lacks(t, string(content), "masked_value")
	has(t, string(content)+fmt.Sprint(err), map[bool]string{true: "PATH=", false: "Permission denied"}[err == nil])
	running := make(chan string)
	go func() {
		running <- script(fmt.Sprintf("until [ $("+curlCode+"running) = 403 ]; do sleep 0.1; done; echo 403", place))
	}()
	<-arrived
	inPlace = true
	hangUp(`deny = ["127.0.0.1"]`, `changes="allow -127.0.0.1; deny +127.0.0.1"`)
	rig.Is(t, <-running, "403\n", "a command that runs at the SIGHUP")
	inPlace = false
	rig.Is(t, run(), "403", "after SIGHUP")
	hangUp("allow = [\"127.0.0.1\"]\nalow = 1", file+":2: unknown key alow")
	rig.Is(t, run(), "403", "after a mistake")
	hangUp(`allow = ["127.0.0.1"]`, `changes="allow +127.0.0.1; deny -127.0.0.1"`)
	rig.Is(t, run(), "200", "allowed again")
	lacks(t, script("cat "+file), "allow")
	_, err = c.Start(rig.Context(t), protocol.StartParams{Argv: []string{"/bin/true"}, Cwd: protocol.NewPathURI("/")})
	has(t, fmt.Sprint(err), "--require-network-enforcement")
}

func isProxyLayer(layer string) bool { return strings.HasPrefix(layer, "proxy:") }

// TestSandboxNetwork: a user's own command reaches what the flag names, and nothing else, with
// namespaces and without, with local addresses and without; what it has reached is told in the end.
func TestSandboxNetwork(t *testing.T) {
	t.Parallel()
	need(t, skip, "curl", "bash")
	var other atomic.Int64
	destination := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/direct" {
			other.Add(1)
		}
		_, _ = io.WriteString(w, "here")
	}))
	t.Cleanup(destination.Close)
	place := strings.TrimPrefix(destination.URL, "http://")
	host, port, err := net.SplitHostPort(place)
	rig.Must(t, err)
	script := fmt.Sprintf(`
		curl -s -m 60 http://%[1]s/; echo
		curl -s -m 60 -o /dev/null -o /dev/null -w '%%{http_code}\n' http://other.invalid/ http://denied.invalid/
		curl -s -m 60 --noproxy '*' http://%[1]s/direct || echo shut
		(exec 3<>/dev/tcp/%[2]s/%[3]s) 2>/dev/null || echo shut`, place, host, port)
	eachMeans(t, func(t *testing.T, launch []string) {
		for _, local := range []string{"", " local"} {
			argv := slices.Concat(launch, []string{rig.Agent(t), "sandbox", "--network", "allow=" + place + local, "--network", "deny=denied.invalid", "--", "bash", "-c", script})
			cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
			cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/var/empty"}
			cmd.SysProcAttr.Setsid = true // without a terminal
			want := "agent: network: reached " + place + "\n" +
				"agent: network: refused denied.invalid:80: denied\nagent: network: refused other.invalid:80: not allowed; add --network allow=other.invalid:80\n"
			rig.Is(t, finish(t, cmd), result{"here\n403\n403\nshut\nshut\n", want, 0}, "agent sandbox%s", local)
		}
	})
	t.Cleanup(func() { rig.Is(t, other.Load(), 0, "how often the destination was reached past the proxy") })
}

// TestManagedNetwork: the escapes from a managed network that the tests of internal/sandbox/confine
// try hold for an ordinary user too, and where nobody can make namespaces.
func TestManagedNetwork(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	tools := rig.Public(t)
	launcher, escapes := rig.Launcher(t, tools), filepath.Join(tools, "escapes")
	build := rig.Command(t, "go", "test", "-c", "-o", escapes, "../../internal/sandbox/confine")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	built := finish(t, build)
	rig.Is(t, built.code, 0, "%+v: go test -c ends with", built)
	rig.Must(t, os.CopyFS(filepath.Join(tools, "testdata"), os.DirFS("../../internal/sandbox/confine/testdata")))
	user := credential(1000)
	for name, tt := range map[string]struct {
		launch []string
		user   *syscall.Credential
		layer  string
	}{
		"namespaces":                {nil, nil, "proxy:netns"},
		"namespaces, ordinary user": {nil, user, "proxy:netns"},
		"supervised":                {[]string{launcher, "--"}, nil, "proxy:supervised"},
		"supervised, ordinary user": {[]string{launcher, "-uid", "1000", "--"}, nil, "proxy:supervised"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(name, "ordinary user") && os.Getuid() != 0 {
				t.Skip("the test is one of an ordinary user already")
			}
			argv := append(tt.launch, escapes, "-test.v", "-test.run", "^(TestManaged.*|TestTransparent|TestTransparentEnds|TestTransparentLevels|TestBridged.*|TestGateOnce)$/^"+tt.layer+"$")
			ctx, stop := context.WithTimeout(t.Context(), 4*patience)
			defer stop()
			cmd := rig.Leash(exec.CommandContext(ctx, argv[0], argv[1:]...))
			cmd.WaitDelay = patience
			cmd.Dir, cmd.Env = tools, []string{"PATH=/usr/bin:/bin", "TMPDIR=/tmp"}
			cmd.SysProcAttr.Credential = tt.user
			out, err := cmd.CombinedOutput()
			if want := "--- PASS: TestManaged/" + tt.layer; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
