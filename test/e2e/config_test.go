package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// configSetup makes a folder the /etc/execagent of a mount namespace, and runs a program there: no
// variable leads the programs to another place.
const configSetup = `mount -t tmpfs none /etc && mkdir /etc/execagent && mount --bind "$1" /etc/execagent && shift && exec "$@"`

// configured is a host with files that set options, and its user.
type configured struct {
	etc, home string // etc is its /etc/execagent
}

func newConfigured(t *testing.T) *configured {
	t.Helper()
	h := &configured{t.TempDir(), t.TempDir()}
	if out, err := h.command(t, nil, "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace: %v: %s", err, out)
	}
	return h
}

// command runs a program on the host.
func (h *configured) command(t *testing.T, variables []string, argv ...string) *exec.Cmd {
	t.Helper()
	enter := []string{"--mount", "sh", "-c", configSetup, "sh", h.etc}
	if os.Geteuid() != 0 {
		enter = append([]string{"--map-root-user"}, enter...)
	}
	cmd := rig.Command(t, "unshare", append(enter, argv...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.home}, variables...)
	return cmd
}

// write writes files: etc/NAME for those of the host, else below the user's home.
func (h *configured) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(h.home, name)
		if in, ok := strings.CutPrefix(name, "etc/"); ok {
			path = filepath.Join(h.etc, in)
		}
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
}

// run returns what a program of ours prints there, and its exit code.
func (h *configured) run(t *testing.T, variables []string, argv ...string) result {
	t.Helper()
	argv[0] = filepath.Join(filepath.Dir(rig.Agent(t)), argv[0])
	return finish(t, h.command(t, variables, argv...))
}

const userFile = ".config/execagent/config.toml"

// TestConfigOrder: each layer is over the one before it, and what is required over all.
func TestConfigOrder(t *testing.T) {
	t.Parallel()
	h := newConfigured(t)
	// The command prints a variable that only the layer in force sets.
	layer := func(name string) string { return fmt.Sprintf("[exec]\nenv = [\"LAYER=%s\"]\n", name) }
	expect := func(want, said string, variables []string, flags ...string) {
		t.Helper()
		argv := append(append([]string{"agent", "exec"}, flags...), "--", "sh", "-c", "echo $LAYER")
		rig.Is(t, h.run(t, variables, argv...), result{want + "\n", said, 0}, "%q %q", variables, flags)
	}
	expect("", "", nil)
	h.write(t, map[string]string{"etc/config.toml": layer("host")})
	expect("host", "", nil)
	h.write(t, map[string]string{userFile: layer("user")})
	expect("user", "", nil)
	expect("variable", "", []string{"AGENT_ENV=LAYER=variable"})
	expect("flag", "", []string{"AGENT_ENV=LAYER=variable"}, "-e", "LAYER=flag")
	h.write(t, map[string]string{"other/execagent/config.toml": layer("other")})
	expect("other", "", []string{"XDG_CONFIG_HOME=" + filepath.Join(h.home, "other")})

	r := h.run(t, []string{"AGENT_WAIT=3s"}, "agent", "config", "show", "exec", "--timeout", "1h")
	for _, want := range []string{"exec +wait +3s +AGENT_WAIT", "exec +timeout +1h +--timeout", "exec +env +\\(not shown\\) +" + h.home + "/" + userFile + ":2", "exec +detach-keys +- +default"} {
		matches(t, r.stdout, want)
	}
	rig.Is(t, r.code, 0, "code")

	h.write(t, map[string]string{"etc/requirements.toml": layer("required")})
	expect("required", "", nil)
	const over = "%s has no effect: /etc/execagent/requirements.toml:2 requires another value\n"
	expect("required", fmt.Sprintf("agent: "+over, "AGENT_ENV"), []string{"AGENT_ENV=LAYER=variable"})
	expect("required", fmt.Sprintf("agent: "+over, "--env"), []string{"AGENT_ENV=LAYER=variable"}, "-e", "LAYER=flag")
	expect("required", fmt.Sprintf("agent: "+over, "--env"), nil, "-ne", "LAYER=flag", "--env=LAYER=more") // which only the parser reads
	expect("required", "", nil, "-e", "LAYER=required")
	r = h.run(t, nil, "agent", "config", "show", "-o", "json", "exec", "-e", "LAYER=flag")
	matches(t, r.stdout, `"option": "env",\s+"value": \[\s+"\(not shown\)"\s+\],\s+"source": "requirement",\s+"file": "/etc/execagent/requirements.toml",\s+"line": 2`)

	h.write(t, map[string]string{"etc/requirements.toml": "[registry.serve]\nstreams = 5\n", "etc/config.toml": ""})
	r = h.run(t, []string{"REGISTRY_STREAMS=6"}, "registry", "config", "show", "serve", "--streams", "7")
	matches(t, r.stdout, "serve +streams +5 +/etc/execagent/requirements.toml:2 \\(required\\)")
	rig.Is(t, ending(r.stderr, r.code), "", "registry config")
}

func matches(t *testing.T, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%s is not in\n%s", pattern, text)
	}
}

// TestConfigWrong: a key that is not known, or that has another type, is told with the file and the
// line, and nothing runs. Help and the version are there all the same.
func TestConfigWrong(t *testing.T) {
	t.Parallel()
	h := newConfigured(t)
	for _, tt := range []struct{ file, text, want string }{
		{"etc/requirements.toml", "[exec]\nwait = '1s'\ntiemout = '1s'\n", `/etc/execagent/requirements.toml:3: unknown key "tiemout": agent exec has no option of that name; did you mean timeout?`},
		{"etc/config.toml", "[exec]\ntimeout = 1\n", `/etc/execagent/config.toml:2: timeout is not a duration such as "30s" or "5m"`},
		{userFile, "\n[exce]\n", filepath.Join(h.home, userFile) + `:2: unknown key "exce": write an option in the table of its command, such as [exec], or [exec-server] for the server; did you mean exec?`},
	} {
		h.write(t, map[string]string{"etc/requirements.toml": "", "etc/config.toml": "", userFile: ""})
		h.write(t, map[string]string{tt.file: tt.text})
		refused := result{"", "agent: " + tt.want + "\nagent: see agent config --help\n", 2}
		rig.Is(t, h.run(t, nil, "agent", "exec", "--", "echo", "ran"), refused, "agent exec")
		r := h.run(t, nil, "agent", "config", "show")
		has(t, ending(r.stderr, r.code), tt.want, "exit 2\n")
		for _, argv := range [][]string{{"agent", "exec", "--help"}, {"agent", "version"}, {"agent", "context", "list"}, {"registry", "version"}} {
			if tt.file == userFile && argv[1] == "context" {
				continue // that is its file
			}
			if r := h.run(t, nil, argv...); r.code != 0 || r.stdout == "" || r.stderr != "" {
				t.Errorf("%q: %+v", argv, r)
			}
		}
	}
	// Whose --help it is decides.
	h.write(t, map[string]string{userFile: "x = 1"})
	r := h.run(t, nil, "agent", "exec", "--", "echo", "--help")
	rig.Is(t, ending(r.stdout, r.code), "exit 2\n", "the command's --help")
}

// TestConfigHelpers: a serving agent has read the files once, and what it starts reads none. The
// Codex CLI's files are told of and never obeyed.
func TestConfigHelpers(t *testing.T) {
	t.Parallel()
	h := newConfigured(t)
	h.write(t, map[string]string{
		"etc/config.toml":    "[exec-server]\nlisten = \"stdio\"\nsession-ttl = \"5m\"\n",
		".codex/config.toml": "model = \"m\"\nlisten = 1\n[exec-server]\nlisten = \"ws://127.0.0.1:0\"\n[exec]\ntimeout = \"1ns\"\n",
	})
	cmd := h.command(t, nil, rig.Agent(t))
	c, err := client.Connect(rig.Context(t), client.Program(transport.CommandConfig{Argv: cmd.Args, Env: cmd.Env}))
	rig.Must(t, err)
	defer c.Close()
	h.write(t, map[string]string{"etc/requirements.toml": "broken", "etc/config.toml": "broken", userFile: "broken"})
	rig.Is(t, inside(t, c, readOnly(h.home), "/", "echo", "ran"), result{"ran\n", "", 0}, "a command")
	if data, err := c.FS(readOnly(h.home)).ReadFile(rig.Context(t), filepath.Join(h.home, ".codex/config.toml")); err != nil || len(data) == 0 {
		t.Errorf("%q, %v", data, err)
	}
	read, err := c.ReadConfig(rig.Context(t), protocol.ConfigReadParams{Cwd: protocol.NewPathURI("/"), ConfigPaths: [][]string{{"model"}}})
	rig.Must(t, err)
	has(t, fmt.Sprint(read.Config), `model = "m"`)

	// And the tool that a model calls works as before.
	patch := filepath.Join(h.home, "patched")
	r := h.run(t, nil, "agent", "--codex-run-as-apply-patch", "*** Begin Patch\n*** Add File: "+patch+"\n+x\n*** End Patch\n")
	rig.Is(t, textOf(os.ReadFile(patch)), "x\n", "%+v", r)
	rig.Is(t, r.code, 0, "%s: code", r.stderr)
	h.write(t, map[string]string{"etc/requirements.toml": "", "etc/config.toml": "", userFile: ""})
	rig.Is(t, h.run(t, nil, "agent", "exec", "--", "echo", "ran"), result{"ran\n", "", 0}, "agent exec")
}
