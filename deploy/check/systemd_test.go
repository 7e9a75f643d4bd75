package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// units are the services, with what systemd-analyze may say of how open they are (in tenths, 100
// is without any hardening), and the directives that would break what they are for.
var units = map[string]struct {
	part, threshold string
	broken          []string
}{
	"registry": {"registry", "15", nil},
	"agent": {"worker", "45", []string{"RestrictNamespaces", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "MemoryDenyWriteExecute",
		"LockPersonality", "RestrictSUIDSGID", "RemoveIPC", "SystemCallArchitectures"}},
	"agent-remote": {"worker", "45", nil}, // as agent, which is compared
}

// TestAgentUnits: both units of an agent are hardened alike.
func TestAgentUnits(t *testing.T) {
	t.Parallel()
	var hardening [2]string
	for i, name := range []string{"agent", "agent-remote"} {
		text := read("../systemd/" + name + ".service")
		hardening[i] = string(text[bytes.Index(text, []byte("\nNoNewPrivileges=")):])
	}
	not(t, hardening[0] != hardening[1], "agent.service has\n%s\nand agent-remote.service\n%s", hardening[0], hardening[1])
}

// TestUnits: systemd takes the units, and finds them hardened.
func TestUnits(t *testing.T) {
	t.Parallel()
	for name, unit := range units {
		text := read("../systemd/" + name + ".service")
		set := map[string]bool{}
		for _, d := range regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+)=(.*)$`).FindAllStringSubmatch(string(text), -1) {
			set[d[1]] = true
			variable, _, _ := strings.Cut(d[2], "=")
			if d[1] == "Environment" {
				known(t, name+".service", unit.part, "$"+variable)
			}
		}
		for _, directive := range unit.broken {
			not(t, set[directive], "%s.service sets %s, which breaks commands or their sandbox", name, directive)
			not(t, !strings.Contains(string(text), "#   "+directive) && !strings.Contains(string(text), ", "+directive),
				"%s.service does not say why it has no %s", name, directive)
		}
		not(t, !strings.Contains(string(text), "\nStartLimitIntervalSec=0\n") || !set["RestartSec"],
			"%s.service is given up when it has ended a few times", name)
		not(t, !set["LoadCredential"] || !set["NoNewPrivileges"] || !set["User"],
			"%s.service has no credential, no user or new privileges", name)

		if _, err := exec.LookPath("systemd-analyze"); err != nil {
			t.Logf("systemd has not looked at %s.service: %v", name, err)
			continue
		}
		// The programs are not where the units say.
		file := filepath.Join(t.TempDir(), name+".service")
		must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/"+strings.TrimSuffix(name, "-remote"), "/bin/true")), 0o600))
		for _, args := range [][]string{
			{"verify", "--man=no", "--recursive-errors=no", file},
			{"security", "--offline=true", "--no-pager", "--threshold=" + unit.threshold, file},
		} {
			out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
			not(t, err != nil || args[0] == "verify" && len(out) > 0, "systemd-analyze %s: %v\n%s", args, err, out)
		}
	}
}
