package programs

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// TestManagers: a package manager installs something real with the hosts, folders and variables of its profile
// alone. What fails unconfined is skipped, because this machine lacks the manager, or reaches no registry.
func TestManagers(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	if *inRoot != "" {
		t.Skip("the root directory has no name server")
	}
	u := &user{id: os.Getuid(), tools: programsOfOurs(t)}
	ways := slices.DeleteFunc(u.ways(t), func(w way) bool { return w.denies || w.name == "unconfined again" })
	for _, s := range rig.Sections(t, "testdata/managers.txt") {
		t.Run(s.Name, func(t *testing.T) {
			if out, err := u.manage(t, ways[0].command, s.Text); err != nil {
				t.Skipf("unconfined: %v: %s", err, out[strings.LastIndexByte(strings.TrimSpace(out), '\n')+1:])
			}
			profile, _, _ := strings.Cut(s.Name, ", ")
			flags := append(registries(t, s.Text), "--profile", profile, "--clean-env", "--keep-env", "*CERT*", "--keep-env", "*_CA*", "--")
			for _, w := range ways[1:] {
				t.Run(w.name, func(t *testing.T) {
					out, err := u.manage(t, func(base string) []string {
						argv := w.command(base)
						return append(argv[:len(argv)-1], flags...)
					}, s.Text)
					if err != nil || !strings.Contains(out, "agent: network: reached ") {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
		})
	}
}

// manage runs a script in a way, in a new workspace and with a home beside it, and returns what it prints.
func (u *user) manage(t *testing.T, way func(string) []string, script string) (string, error) {
	base := u.folder(t)
	rig.Must(t, os.Mkdir(base+"/work", 0o755), os.Mkdir(base+"/home", 0o755))
	argv := append(way(base), "bash", "-euo", "pipefail", "-c", script)
	cmd := rig.Leash(exec.CommandContext(t.Context(), argv[0], argv[1:]...))
	cmd.Dir = base + "/work"
	cmd.Env = append(os.Environ(), "HOME="+base+"/home", "RUSTUP_HOME="+cmp.Or(os.Getenv("RUSTUP_HOME"), os.Getenv("HOME")+"/.rustup"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// registries returns flags for the registries of a script. A machine can have its own in the variables that the
// script's first line names, and names of registries can lead to addresses that are not public.
func registries(t *testing.T, script string) (flags []string) {
	line, _, _ := strings.Cut(script, "\n")
	for word := range strings.FieldsSeq(strings.TrimPrefix(line, "# registries:")) {
		name, usual, _ := strings.Cut(word, "=")
		for at := range strings.SplitSeq(strings.ReplaceAll(cmp.Or(os.Getenv(name), usual), "|", ","), ",") {
			where, err := url.Parse(at)
			if err != nil || where.Host == "" {
				continue // such as direct
			}
			if os.Getenv(name) != "" {
				flags = append(flags, "--network", "allow="+where.Host, "-e", name)
			}
			if addrs, _ := net.DefaultResolver.LookupNetIP(t.Context(), "ip", where.Hostname()); slices.ContainsFunc(addrs, rules.IsLocal) {
				flags = append(flags, "--network", "local")
			}
		}
	}
	return flags
}
