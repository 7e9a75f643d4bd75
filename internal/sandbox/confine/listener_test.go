package confine

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// hostAddresses returns the addresses of this host, in all the ways to write
// them.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	all := []string{"127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:127.3.2.1", "::ffff:0.0.0.0"}
	interfaces := rig.Value(net.Interfaces())
	for _, i := range interfaces {
		addrs := rig.Value(i.Addrs())
		for _, a := range addrs {
			prefix := rig.Value(netip.ParsePrefix(a.String()))
			addr := prefix.Addr()
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(i.Name)
			}
			all = append(all, addr.String())
			if addr.Is4() {
				all = append(all, "::ffff:"+addr.String())
			}
		}
	}
	return all
}

// TestAgentIsOutOfReach: a command with the network cannot connect to the agent,
// whatever address of this host it uses. It can connect to other services of the
// host.
func TestAgentIsOutOfReach(t *testing.T) {
	t.Parallel()
	agent, other := greeter(t, "tcp", ":0"), greeter(t, "tcp", ":0")
	agentPort, otherPort := port(agent), port(other)
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := startPuppet(t, t.TempDir(), limits, 1, uint16(agentPort))
		for _, host := range hostAddresses(t) {
			at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
			if got := a.ask("smc", at(agentPort)); got != "EPERM" && !strings.HasPrefix(got, "socket ") {
				t.Errorf("%s, SMC: %s", host, got)
			}
			a.wantTable("the agent", map[string]any{"agent": at(agentPort), "other": at(otherPort)})
		}
		a.want("ok", "take", "127.0.0.1:0", unix.SOCK_STREAM)
		a.want("ok", "take", "[::1]:0", unix.SOCK_DGRAM)
	}
}

// TestBind: a command cannot bind an abstract name. It can bind a name in the
// file system where it may make files, with the result that it would have by
// itself.
func TestBind(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	sandboxtest.Tree(t, root, "sub/", ".git/HEAD", "out -> "+outside, "git -> .git", "in -> sub")
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := startPuppet(t, root, limits)
		a.wantTable("bind", map[string]any{"root": root, "outside": outside, "long": strings.Repeat("x", 120)})
		// Among the descriptors of init are directories that the view protects.
		// The process that binds has only one directory: the caller's working
		// directory.
		bound, descriptors := 0, 40
		if limits != (Limits{}) && !rig.Runs(rig.Merge) {
			descriptors = 4 // as many as the first init has, and one
		}
		for fd := range descriptors {
			for _, below := range []string{"", ".git/", "sub/../.git/"} {
				for _, process := range []string{"self", "thread-self", "1"} {
					name := fmt.Sprintf("/proc/%s/fd/%d/%ssock", process, fd, below)
					got := a.ask("name", name)
					if strings.Contains(got, name) { // the name was bound, whatever failed afterwards
						bound++
						if below != "" || process == "1" {
							t.Errorf("%s: %s", name, got)
						}
					} else if !slices.Contains([]string{"ENOENT", "ENOTDIR", "EROFS", "EADDRINUSE", "EPERM"}, got) {
						t.Errorf("%s: %s", name, got)
					}
				}
			}
		}
		rig.Is(t, bound <= 1, true, "%d names were bound below descriptors", bound)
		for _, dir := range []string{root + "/.git", outside, filepath.Dir(root), "/"} {
			rig.Is[error](t, rig.Err(os.Lstat(dir+"/sock")), os.ErrNotExist, "a socket in %s", dir)
		}
		for _, name := range []string{"socket", "relative", "relative2", "sub/linked", "byproc", "byroot"} {
			rig.Check(t, os.Remove(filepath.Join(root, name)))
		}
	}
}
