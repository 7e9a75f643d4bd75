package programs

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

const allowedName, deniedName = "allowed.example.com", "denied.example.com"

// TestProtocols: programs that know of no proxy reach the name that is allowed, with namespaces and without. A name
// that is not allowed fails, and the name server of the host is never asked for it.
func TestProtocols(t *testing.T) {
	sections := rig.Sections(t, "testdata/protocols.txt")
	if tools, inside := os.LookupEnv("PROTOCOLS_TOOLS"); inside {
		useProtocols(t, tools, sections)
		return
	}
	rig.Tier(t, rig.Nightly)
	if lacks := rig.Lacking("unshare", "mount", "ip", "bash", "go"); lacks != nil || *inRoot != "" {
		t.Skip("programs are made before, and a namespace for servers: ", lacks)
	}
	tools := (&user{}).folder(t)
	for _, s := range sections {
		if name, ok := strings.CutPrefix(s.Name, "make "); ok && rig.Lacking(strings.Fields(s.Remark("needs"))...) == nil {
			cmd := rig.Command(t, "bash", "-euo", "pipefail", "-c", s.Text)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "tools="+tools, "testdata="+rig.Value(os.Getwd())+"/testdata")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Logf("%s cannot be made: %v: %s", name, err, out)
			}
		}
	}
	rig.Must(t, os.WriteFile(tools+"/resolv.conf", []byte("nameserver "+rig.PublicAddress+"\n"), 0o644),
		os.WriteFile(tools+"/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nserver:x:1000:1000::/:/bin/sh\n"), 0o644))
	rig.InNetwork(t, "TestProtocols", "PROTOCOLS_TOOLS="+tools, tools+"/resolv.conf", "/etc/resolv.conf", tools+"/passwd", "/etc/passwd")
}

// useProtocols runs the servers and the clients in namespaces that have the address.
func useProtocols(t *testing.T, tools string, sections []rig.Section) {
	for name, value := range map[string]string{"PATH": tools + ":" + os.Getenv("PATH"), "tools": tools, "address": rig.PublicAddress} {
		t.Setenv(name, value)
	}
	// Servers that are not root listen at their usual ports.
	rig.Must(t, os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0))
	asked := rig.ServeNames(t, map[string][4]byte{allowedName: {20, 0, 0, 1}, deniedName: {20, 0, 0, 1}})
	rig.Listen(t, "tcp", rig.PublicAddress+":7", rig.Echo)
	u := &user{id: os.Getuid(), tools: programsOfOurs(t)}
	ways := slices.DeleteFunc(u.ways(t), func(w way) bool { return w.denies || w.name == "unconfined again" })
	for _, s := range sections {
		verb, port, _ := strings.Cut(s.Name, " ")
		lacks := rig.Lacking(strings.Fields(s.Remark("needs"))...)
		if verb == "serve" && lacks == nil {
			p := rig.Start(t, exec.Command("bash", "-euo", "pipefail", "-c", s.Text))
			rig.Until(t, s.Name, func() bool {
				conn, err := net.Dial("tcp", rig.PublicAddress+":"+port)
				if err == nil {
					_ = conn.Close()
				} else if p.Gone() {
					t.Fatalf("%s: %s", s.Name, p.Printed)
				}
				return err == nil
			})
		} else if verb != "make" && verb != "serve" {
			t.Run(s.Name, func(t *testing.T) {
				if lacks != nil {
					t.Skip(lacks)
				}
				for _, w := range ways {
					t.Run(w.name, func(t *testing.T) { u.speak(t, w, s) })
				}
			})
		}
	}
	rig.Is(t, asked()[deniedName], false, "the name server was asked for the name that is not allowed")
}

// speak runs a client with both names; unconfined with the allowed one, to see that all is there.
func (u *user) speak(t *testing.T, w way, s rig.Section) {
	prints, denied := s.Remark("prints"), s.Remark("denied")
	for _, name := range []string{allowedName, deniedName} {
		began := time.Now()
		out, err := u.manage(t, func(base string) (argv []string) {
			if argv = w.command(base); w.name != "unconfined" {
				argv = append(argv[:len(argv)-1], "--network", "allow="+allowedName, "--")
			}
			return append(argv, "env", "name="+name)
		}, s.Text)
		t.Logf("%s, %v: %s", name, time.Since(began).Round(time.Millisecond), out)
		good := err == nil && slices.Contains(strings.Split(out, "\n"), prints)
		if name == deniedName && denied != "" {
			good = err != nil && strings.Contains(out, strings.TrimPrefix(denied, "nothing")) && strings.Contains(out, "agent: network: refused "+name+":")
		}
		if !good {
			t.Errorf("%s: %v, and %q or %q is not in the output", name, err, prints, denied)
		}
		if w.name == "unconfined" {
			return
		}
	}
}
