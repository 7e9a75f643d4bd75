package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// operation is the page of the commands.
const operation = "../../docs/operation.md"

// guide has the commands of docs/operation.md, and runs them in a folder of the test.
type guide struct {
	lines   []string
	dir     string
	place   *strings.Replacer // what is of this machine instead of the guide's
	environ []string
}

// readGuide reads the commands: the lines of consoles that begin with a prompt, with those that
// they go on in.
func readGuide(t *testing.T, replace ...string) *guide {
	t.Helper()
	g := &guide{dir: t.TempDir(), place: strings.NewReplacer(replace...)}
	g.environ = append(os.Environ(), "HOME="+g.dir, "XDG_CONFIG_HOME=", "AGENT_CONFIG=", "PATH="+filepath.Dir(rig.Agent(t))+":"+filepath.Dir(rig.Registry(t))+":"+os.Getenv("PATH"))
	for _, b := range fenced(t, operation) {
		if b.info != "console by=operation" {
			continue
		}
		goesOn := false
		for line := range strings.Lines(b.text) {
			line = strings.TrimSpace(line)
			command := strings.TrimSuffix(line, "\\")
			switch {
			case goesOn:
				g.lines[len(g.lines)-1] += " " + command
			case strings.HasPrefix(line, "# "), strings.HasPrefix(line, "$ "):
				g.lines = append(g.lines, command[2:])
			}
			goesOn = command != line
		}
	}
	return g
}

// find returns the commands that begin in one of these ways, which must all be there.
func (g *guide) find(t *testing.T, starts ...string) (found []string) {
	t.Helper()
	seen := map[string]bool{}
	for _, line := range g.lines {
		for _, start := range starts {
			if strings.HasPrefix(line, start) {
				seen[start] = true
				found = append(found, g.place.Replace(line))
			}
		}
	}
	for _, start := range starts {
		if !seen[start] {
			t.Fatalf("docs/operation.md has no command %q", start)
		}
	}
	return found
}

// in has a command run where the guide's do.
func (g *guide) in(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir, cmd.Env = g.dir, g.environ
	return cmd
}

// command is one that ends by itself.
func (g *guide) command(t *testing.T, line string) *exec.Cmd {
	t.Helper()
	return rig.Leash(g.in(rig.Command(t, "sh", "-eu", "-c", line)))
}

// run runs commands and returns what they print.
func (g *guide) run(t *testing.T, lines ...string) string {
	t.Helper()
	var all strings.Builder
	for _, line := range lines {
		out, err := g.command(t, line).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		_, _ = all.WriteString(withoutWaits(string(out)))
	}
	return all.String()
}

// ready starts a server, and waits until it answers at an address that it is.
func (g *guide) ready(t *testing.T, address, line string) *rig.Program {
	t.Helper()
	p := rig.Start(t, g.in(exec.Command("sh", "-eu", "-c", "exec "+line)))
	p.Until(t, "it is ready", func() bool { return rig.Status("http://"+address+"/readyz") == http.StatusOK })
	return p
}

// TestOperationTLS: the commands of docs/operation.md make an authority and certificates, and with
// them an agent serves who has the token, or a certificate.
func TestOperationTLS(t *testing.T) {
	t.Parallel()
	need(t, missing, "openssl")
	address, health := rig.FreeAddress(t), rig.FreeAddress(t)
	g := readGuide(t, "/etc/execagent/", "", "0.0.0.0:7000", address, "127.0.0.1:7000", address, "127.0.0.1:7301", health, "HOST:PORT", address,
		"wss://build.example.com:7000", "wss://"+address+" --tls-server-name build.example.com", "make test", "echo served")
	g.run(t, g.find(t, "openssl req -x509", "openssl req -newkey", "echo subjectAltName", "openssl x509", "echo extendedKeyUsage", "(umask 077; head")...)
	token := g.ready(t, health, g.find(t, "agent --listen wss://")[0])
	rig.Is(t, g.run(t, g.find(t, "agent health --url wss://")[0]), "", "health says")
	execs := g.find(t, "agent exec --url wss://")
	rig.Is(t, len(execs), 2, "%q: commands", execs)
	rig.Is(t, g.run(t, execs[0]), "served\n", "%s", execs[0])
	_, shown, _ := strings.Cut(textOf(os.ReadFile(operation)), "**See what is shown:** `")
	shown, _, _ = strings.Cut(shown, "`")
	has(t, g.run(t, g.place.Replace(shown)), "serial=", "notAfter=")
	token.Terminate(t)

	g.ready(t, health, g.find(t, "agent --listen 0.0.0.0:7000")[0]+" --health-listen "+health)
	rig.Is(t, g.run(t, execs[1]), "served\n", "%s", execs[1])
	has(t, says(t, g.command(t, execs[0])), "certificate required (see --tls-cert)", "exit ")
}

// TestOperationRegistry: the commands of docs/operation.md make a registry with TLS, an agent
// behind it, and a command there.
func TestOperationRegistry(t *testing.T) {
	t.Parallel()
	need(t, missing, "openssl")
	address, metrics, health := rig.FreeAddress(t), rig.FreeAddress(t), rig.FreeAddress(t)
	g := readGuide(t, "DNS:build.example.com", "IP:127.0.0.1", "https://registry.example.com:8443", "https://"+address, "0.0.0.0:8443", address,
		"127.0.0.1:7302", metrics, "127.0.0.1:7301", health, "/var/lib/execagent-registry", "data", "/etc/ssl/certs/execagent-ca.crt", "ca.crt", "make test", "echo served")
	g.run(t, g.find(t, "openssl req -x509", "openssl req -newkey", "echo subjectAltName", "openssl x509 -req")[:4]...)
	g.ready(t, metrics, g.find(t, "registry serve")[0])
	g.run(t, g.find(t, "registry keys create")...)
	trust := g.find(t, "export SSL_CERT_FILE")[0]
	g.environ = append(g.environ, strings.TrimPrefix(trust, "export "))
	g.ready(t, health, g.find(t, "agent --remote")[0])
	lines := g.find(t, "agent login --use --key-file harness.key", "agent environments", "agent exec --environment-id")
	matches(t, g.run(t, lines...), `(?s)build-1.*served\n$`)
}
