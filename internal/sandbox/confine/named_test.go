package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestNamedSockets: a command reaches exactly the UNIX sockets that its policy names, whatever its network.
func TestNamedSockets(t *testing.T) {
	rows := rig.Rows(t, "testdata/puppet.txt", "named sockets", 4)
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		for i, network := range []string{"restricted", "enabled", "managed", "transparent"} {
			t.Run(network, func(t *testing.T) {
				out, secret, root := t.TempDir(), t.TempDir(), t.TempDir()
				for _, name := range []string{out + "/sock", out + "/other", out + "/evil", secret + "/sock", secret + "/other", root + "/sock", root + "/other"} {
					greeter(t, "unix", name)
				}
				sandboxtest.Tree(t, out, "file", "link -> sock", "away -> "+out+"/other")
				sandboxtest.Tree(t, secret, "file")
				sandboxtest.Tree(t, root, "dir -> "+out)
				profile := managedProfile(root)
				profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: secret, Access: sandbox.Denied})
				profile.Sockets = []string{out + "/sock", secret + "/sock", root + "/sock", root + "/late"}
				var held *Held
				switch network {
				case "managed":
					held = enterManaged(t, door, profile, Managed{})
				case "transparent":
					held = enterTransparent(t, door, profile, Managed{})
				case "enabled":
					profile.Network = sandbox.NetworkEnabled
					fallthrough
				default:
					held = rig.Value(door.Enter(profile))
					t.Cleanup(held.Release)
				}
				a := puppetIn(t, held, root)
				a.supervised = layer == "proxy:supervised"
				names := map[string]any{"base": filepath.Base(out), "out": out, "secret": secret, "root": root,
					"abstract": greeter(t, "unix", "@"+root).String()[1:], "other": port(greeter(t, "tcp4", "127.0.0.1:0"))}
				for _, row := range rows {
					what, name, _ := strings.Cut(row[0], " ")
					name = os.Expand(name, func(word string) string { return fmt.Sprint(names[word]) })
					switch what {
					case "remove", "restart", "replace":
						_ = os.Remove(name) // it may be removed already
					default:
						a.wantRow([]string{row[0], row[min(i, 2)+1]}, names)
					}
					switch what {
					case "restart":
						greeter(t, "unix", name)
					case "replace":
						put(t, name, "")
					}
				}
			})
		}
	})
}

// TestNamedDevices: a command uses exactly the devices that its policy names, in every view.
func TestNamedDevices(t *testing.T) {
	rows := rig.Rows(t, "testdata/puppet.txt", "named devices", 2)
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		self, root := rig.Value(os.Executable()), t.TempDir()
		everything := managedProfile(root)
		minimal := sandbox.Profile{Entries: []sandbox.Entry{
			{Place: sandbox.PlaceMinimal, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: self, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		}}
		for _, profile := range []sandbox.Profile{everything, minimal} {
			profile.Devices = []string{"/dev/fuse", "/dev/loop0", "/dev/net/tun", "/dev/none", "/dev/null"}
			held := rig.Value(door.Enter(profile))
			t.Cleanup(held.Release)
			a := puppetIn(t, held, root)
			for _, row := range rows {
				device := row[0][max(strings.Index(row[0], "/dev"), 0):]
				if _, err := os.Stat(device); err != nil && !strings.Contains(row[0], "$root") {
					continue
				}
				want := row[1]
				if want == "host" {
					fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK, 0)
					if want = outcome(err); err == nil {
						unix.Close(fd)
					}
				}
				a.wantRow([]string{row[0], want}, map[string]any{"root": root})
			}
		}
	})
}
