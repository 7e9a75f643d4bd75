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
	rows := rig.Rows(t, "testdata/named.txt", "sockets", 4)
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
				words := strings.NewReplacer("OUTNAME", filepath.Base(out), "OUT", out, "SECRET", secret, "ROOT", root, "LINK", root+"/dir",
					"ABSTRACT", greeter(t, "unix", fmt.Sprintf("@named-%s-%s-%d", layer, network, os.Getpid())).String()[1:],
					"PORT", fmt.Sprint(port(greeter(t, "tcp4", "127.0.0.1:0"))))
				for _, row := range rows {
					what, name, _ := strings.Cut(words.Replace(row[0]), " ")
					switch what {
					case "remove":
						rig.Must(t, os.Remove(name))
						continue
					case "restart":
						rig.Must(t, os.RemoveAll(name))
						greeter(t, "unix", name)
						continue
					case "replace":
						rig.Must(t, os.Remove(name))
						put(t, name, "")
						continue
					}
					netns, told, both := strings.Cut(row[min(i, 2)+1], "/")
					if both && layer == "proxy:supervised" {
						netns = told
					}
					a.want(netns, what, name)
				}
			})
		}
	})
}

// TestNamedDevices: a command uses exactly the devices that its policy names, in every view.
func TestNamedDevices(t *testing.T) {
	rows := rig.Rows(t, "testdata/named.txt", "devices", 2)
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		self, root := rig.Value(os.Executable()), t.TempDir()
		everything := managedProfile(root)
		minimal := sandbox.Profile{Entries: []sandbox.Entry{
			{Place: sandbox.PlaceMinimal, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: self, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		}}
		for name, profile := range map[string]sandbox.Profile{"everything": everything, "minimal": minimal} {
			profile.Devices = []string{"/dev/fuse", "/dev/loop0", "/dev/net/tun", "/dev/none", "/dev/null"}
			held := rig.Value(door.Enter(profile))
			t.Cleanup(held.Release)
			a := puppetIn(t, held, root)
			for _, row := range rows {
				what, args, _ := strings.Cut(strings.ReplaceAll(row[0], "ROOT", root), " ")
				device := args[max(strings.Index(args, "/dev"), 0):]
				want := row[1]
				if _, err := os.Stat(device); err != nil && !strings.Contains(args, root) {
					continue
				}
				if want == "host" {
					fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK, 0)
					if want = outcome(err); err == nil {
						unix.Close(fd)
					}
				}
				if got := a.ask(what, args); got != want && (want != "refused" || got != "ENOENT" && got != "EACCES") {
					t.Errorf("%s: %s: %s, want %s", name, row[0], got, want)
				}
			}
		}
	})
}
