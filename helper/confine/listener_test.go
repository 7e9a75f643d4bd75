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
)

// hostAddresses are those of this host, however they are written.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	all := []string{"127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:127.3.2.1", "::ffff:0.0.0.0"}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				t.Fatal(err)
			}
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

// A command with the network does not become a client of the agent, whatever it
// calls this host; other services of the host it reaches.
func TestAgentIsOutOfReach(t *testing.T) {
	t.Parallel()
	agent, other := greeter(t, "tcp", ":0"), greeter(t, "tcp", ":0")
	agentPort, otherPort := agent.Addr().(*net.TCPAddr).Port, other.Addr().(*net.TCPAddr).Port
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := connecting(t, t.TempDir(), limits, 1, uint16(agentPort))
		for _, host := range hostAddresses(t) {
			at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
			if got := a.ask("dial", at(agentPort), unix.SOCK_STREAM); got != "EPERM" {
				t.Errorf("%s, the agent: %s", host, got)
			}
			if got := a.ask("dial", at(agentPort), unix.SOCK_STREAM|unix.SOCK_NONBLOCK); got != "EPERM" {
				t.Errorf("%s, the agent, without waiting: %s", host, got)
			}
			if got := a.ask("dial", at(agentPort), unix.SOCK_DGRAM); got != "ok" {
				t.Errorf("%s, datagrams: %s", host, got)
			}
			if got := a.ask("fastopen", at(agentPort)); got != "ENOTSUP" {
				t.Errorf("%s, fast open: %s", host, got)
			}
			if got := a.ask("smc", at(agentPort)); got != "EPERM" && !strings.HasPrefix(got, "socket ") {
				t.Errorf("%s, SMC: %s", host, got)
			}
			// What is refused would have arrived.
			if got := a.ask("dial", at(otherPort), unix.SOCK_STREAM); got != "ok" {
				t.Errorf("%s, another service: %s", host, got)
			}
		}
		if got := a.ask("take", "127.0.0.1:0", unix.SOCK_STREAM); got != "ok" {
			t.Errorf("taking a port: %s", got)
		}
		if got := a.ask("take", "[::1]:0", unix.SOCK_DGRAM); got != "ok" {
			t.Errorf("taking a port of UDP: %s", got)
		}
	}
}

// Names of the host are not to be taken; names in the file system are, where the
// command may make files, as it would do it itself.
func TestBind(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"sub", ".git"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, ".git", "HEAD"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": outside, "git": ".git", "in": "sub"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := connecting(t, root, limits)
		for _, c := range []struct{ name, want string }{
			{"@execagent-test", "EPERM"},
			{"@", "EPERM"},
			{"auto", "EPERM"},
			{root + "/socket", "ok " + root + "/socket 750"},
			{"relative", "ok relative 750"},
			{"sub/../relative2", "ok sub/../relative2 750"},
			{"in/linked", "ok in/linked 750"},
			{root + "/sub", "EADDRINUSE"},
			{"relative", "EADDRINUSE"},
			{"none/sock", "ENOENT"},
			{".git/sock", "EROFS"},
			{"git/sock", "EROFS"},
			{outside + "/sock", "EROFS"},
			{"out/sock", "EROFS"},
			// It is there, but a path through procfs is none to connect to.
			{"/proc/self/cwd/byproc", "ELOOP /proc/self/cwd/byproc 750"},
			{"/proc/self/root" + root + "/byroot", "ELOOP /proc/self/root" + root + "/byroot 750"},
			{root + "/" + strings.Repeat("x", 120), "EINVAL"},
		} {
			if got := a.ask("name", c.name); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		// Below the descriptors of init are directories that the view protects.
		// The process that binds has but one: the caller's working directory.
		bound := 0
		for fd := range 40 {
			for _, below := range []string{"", ".git/", "sub/../.git/"} {
				for _, process := range []string{"self", "thread-self", "1"} {
					name := fmt.Sprintf("/proc/%s/fd/%d/%ssock", process, fd, below)
					got := a.ask("name", name)
					if strings.Contains(got, name) { // it was bound, whatever became of looking at it
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
		if bound > 1 {
			t.Errorf("%d names were bound below descriptors", bound)
		}
		for _, dir := range []string{root + "/.git", outside, filepath.Dir(root), "/"} {
			if _, err := os.Lstat(dir + "/sock"); err == nil {
				t.Errorf("%s has a socket", dir)
			}
		}
		for _, name := range []string{"socket", "relative", "relative2", "sub/linked", "byproc", "byroot"} {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	}
}
