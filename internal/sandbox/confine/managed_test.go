package confine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// enforcements are the ways in which the network of a command is managed: what the host
// has for them, and what of it is told.
var enforcements = []struct {
	layer string
	host  sandbox.Host
}{
	{"proxy:netns", sandbox.Host{Layers: full().Layers.With(sandbox.UserNotify, sandbox.Pidfd), Landlock: enforce.LandlockABI()}},
	{"proxy:supervised", sandbox.Host{Layers: sandbox.LayersOf(sandbox.Supervised, sandbox.Seccomp), Landlock: enforce.LandlockABI()}},
}

// eachEnforcement runs a test in each of them.
func eachEnforcement(t *testing.T, test func(t *testing.T, layer string, door *Door)) {
	t.Parallel()
	for _, e := range enforcements {
		t.Run(e.layer, func(t *testing.T) {
			t.Parallel()
			held := placeholders(t)
			test(t, e.layer, &Door{
				Host:         func() (sandbox.Host, error) { return e.host, nil },
				Served:       new(resolve.Served),
				Placeholders: func() (*placeholder.Placeholders, error) { return held, nil },
			})
		})
	}
}

// managedProfile lets everything be read and root be written.
func managedProfile(root string) sandbox.Profile {
	return sandbox.Profile{Entries: []sandbox.Entry{
		{Place: sandbox.PlaceRoot, Access: sandbox.Read},
		{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
	}}
}

// enterManaged enters a managed network, whose HTTP listener greets with "http" and whose
// other one with "socks".
func enterManaged(t *testing.T, door *Door, profile sandbox.Profile, m Managed) *Held {
	t.Helper()
	held := rig.Value(door.EnterManaged(profile, m))
	t.Cleanup(held.Release)
	greet := func(l net.Listener, text string) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
	go greet(held.Gate().HTTP(), "http")
	if m.SOCKS5 {
		go greet(held.Gate().SOCKS5(), "socks")
	}
	return held
}

// startHeld starts a program in a sandbox that was entered.
func startHeld(t testing.TB, held *Held, spec procs.Spec) *run {
	t.Helper()
	r := &run{t: t}
	spec.Sink, spec.Stage = r.sink, func(p procs.Program) (*procs.Stage, error) {
		stage, err := held.Stage(p)
		stage.Env = append(stage.Env, "GORACE=atexit_sleep_ms=0")
		return stage, err
	}
	p := rig.Value(procs.Start(spec))
	t.Cleanup(func() { p.Close() })
	r.Process = p
	p.Begin()
	return r
}

// puppetIn starts a puppet there.
func puppetIn(t *testing.T, held *Held, root string) *puppet {
	t.Helper()
	self := rig.Value(os.Executable())
	a := &puppet{supervised: slices.Contains(held.Layers, "proxy:supervised"), run: startHeld(t, held, procs.Spec{
		Argv: []string{self, connectChild}, Env: []string{"GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}, Dir: root, Stdin: true,
	})}
	a.until("ready\n")
	return a
}

// port is that of an address.
func port(addr net.Addr) int { return addr.(*net.TCPAddr).Port }

// performManaged does one thing in a puppet with a managed network.
func performManaged(what string, args []string) (answer string, known bool) {
	number := func(i int) int { n, _ := strconv.Atoi(args[i]); return n }
	to := func(i int) unix.Sockaddr { return &unix.SockaddrInet4{Port: number(i), Addr: [4]byte{127, 0, 0, 1}} }
	tcp := func(use func(fd int) error) string { return onSocket(unix.AF_INET, unix.SOCK_STREAM, use) }
	switch what {
	case "socket": // family, type, protocol
		fd, err := unix.Socket(number(0), number(1), number(2))
		if err == nil {
			err = unix.Close(fd)
		}
		return outcome(err), true
	case "pair": // type
		return outcome(rig.Err(unix.Socketpair(unix.AF_UNIX, number(0), 0))), true
	case "uring":
		_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
		return outcome(errno), true
	case "listen": // without a bind before
		return tcp(func(fd int) error { return unix.Listen(fd, 1) }), true
	case "option": // level, name: of a socket
		return tcp(func(fd int) error {
			return unix.SetsockoptString(fd, number(0), number(1), "\x83\x07\x04\x7f\x00\x00\x01\x00")
		}), true
	case "again": // ports: connect one socket to each, one after the other
		var all []string
		_ = tcp(func(fd int) error {
			for i := range args {
				all = append(all, outcome(unix.Connect(fd, to(i))))
			}
			return nil
		})
		return strings.Join(all, " "), true
	case "leave": // connect, end that with AF_UNSPEC, and connect elsewhere
		var all []string
		_ = tcp(func(fd int) error {
			all = append(all, outcome(unix.Connect(fd, to(0))), outcome(rawConnect(fd, make([]byte, 16), -1)), outcome(unix.Connect(fd, to(1))))
			return nil
		})
		return strings.Join(all, " "), true
	case "bound": // bind, then connect
		var all []string
		_ = tcp(func(fd int) error {
			all = append(all, outcome(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})), outcome(unix.Connect(fd, to(0))))
			return nil
		})
		return strings.Join(all, " "), true
	case "options": // connect with all that could lead elsewhere
		return tcp(func(fd int) error {
			for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_REUSEPORT}, {unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT}} {
				if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
					return err
				}
			}
			return unix.Connect(fd, to(0))
		}), true
	case "inherit": // a child connects the socket that it has as descriptor 3
		return tcp(func(fd int) error {
			child := exec.Command("/proc/self/exe", connectChild)
			child.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "socket")}
			child.Stdin = strings.NewReader("1 connectfd 3 " + args[0] + "\n")
			out, err := child.Output()
			if err == nil {
				_, rest, _ := strings.Cut(string(out), "answer 1: ")
				answer, _, _ = strings.Cut(rest, "\n")
				err = errors.New(answer)
			}
			return err
		}), true
	case "pass": // a socket goes through a message, and is closed where it was
		return tcp(func(fd int) error { return connectPassed(fd, to(0)) }), true
	case "connectfd":
		return outcome(unix.Connect(number(0), to(1))), true
	case "many": // connect so often, from several threads, and count what greets
		var greeted atomic.Int64
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for range number(1) {
					if performInet("tcp", args[:1]) == "ok http" {
						greeted.Add(1)
					}
				}
			})
		}
		work.Wait()
		return fmt.Sprint(greeted.Load()), true
	case "rewrite": // connect while another thread changes the port in the address
		inet := func(i int) []byte {
			addr := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
			return append(binary.BigEndian.AppendUint16(addr, uint16(number(i))), 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
		}
		return race(unix.AF_INET, inet(0), inet(1), "ECONNREFUSED", 2000, 0), true
	}
	return "", false
}

// connectPassed sends a socket in a message, receives it as another descriptor, and
// connects that.
func connectPassed(fd int, to unix.Sockaddr) error {
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	control := make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), control, 0); err != nil {
		return err
	}
	fds := rig.Value(unix.ParseUnixRights(&rig.Value(unix.ParseSocketControlMessage(control))[0]))
	defer unix.Close(fds[0])
	return unix.Connect(fds[0], to)
}

// TestManaged: a command reaches the listeners of its gate, and nothing else
// (network.md 9; L1, L17).
func TestManaged(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		root := t.TempDir()
		held := enterManaged(t, door, managedProfile(root), Managed{SOCKS5: true})
		rig.Is(t, slices.Contains(held.Layers, layer), true, "%s is among %q", layer, held.Layers)
		other, other6 := port(greeter(t, "tcp4", "127.0.0.1:0")), port(greeter(t, "tcp6", "[::1]:0"))
		greeter(t, "unix", root+"/sock")
		abstract := greeter(t, "unix", fmt.Sprintf("@managed-%s-%d", layer, os.Getpid())).String()[1:]
		a := puppetIn(t, held, root)
		http := port(held.Gate().HTTP().Addr())
		a.wantTable("managed", map[string]any{
			"root": root, "http": http, "socks": port(held.Gate().SOCKS5().Addr()), "other": other, "other6": other6, "abstract": abstract,
		})
		rig.Is(t, strings.HasSuffix(a.ask("nonblocking", http), "http"), true, "greeted without blocking")
	})
}

// TestManagedOutsider: another process of the same user does not get through the gate of
// a command (L17).
func TestManagedOutsider(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		root := t.TempDir()
		held := enterManaged(t, door, managedProfile(root), Managed{})
		a := puppetIn(t, held, root)
		stop := make(chan struct{})
		done := make(chan int)
		go func() { // from every port, while the command connects too
			greeted := 0
			for {
				select {
				case <-stop:
					done <- greeted
					return
				default:
				}
				conn, err := net.Dial("tcp4", held.Gate().HTTP().Addr().String())
				if err != nil {
					continue
				}
				text, _ := io.ReadAll(conn)
				greeted += len(text)
				_ = conn.Close()
			}
		}()
		http := port(held.Gate().HTTP().Addr())
		a.want("80", "many", http, 10)
		close(stop)
		rig.Is(t, <-done, 0, "bytes with which an outsider was greeted")
		held.Gate().Close()
		// A process that another test starts has the listener too, until it executes its
		// program: then a connection is reset.
		got := a.ask("tcp", http)
		refused := strings.HasPrefix(got, "ECONNREFUSED") || strings.HasPrefix(got, "ECONNRESET")
		rig.Is(t, refused, true, "after the gate was closed: %s", got)
	})
}

// TestManagedEverything: a command whose files nobody restricts has no more of a network.
func TestManagedEverything(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		if layer == "proxy:netns" && os.Geteuid() != 0 {
			t.Skip("a view of / keeps a placeholder that a test of root holds there meanwhile, and ends with it")
		}
		root := t.TempDir()
		secret := t.TempDir()
		put(t, secret+"/key", "")
		door.Private = []string{secret}
		other := port(greeter(t, "tcp4", "127.0.0.1:0"))
		for _, profile := range []sandbox.Profile{
			{Kind: sandbox.Disabled}, {Kind: sandbox.External, Network: sandbox.NetworkEnabled}, {Unrestricted: true, Network: sandbox.NetworkEnabled},
			{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Write}}},
		} {
			if profile.Entries != nil && os.Geteuid() != 0 {
				// Its view would keep a placeholder at the top, such as /HEAD, that a test of root holds
				// there meanwhile. It ends when that test takes the placeholder away.
				continue
			}
			held := enterManaged(t, door, profile, Managed{})
			a := puppetIn(t, held, root)
			a.want("ok http", "tcp", port(held.Gate().HTTP().Addr()))
			a.want("ECONNREFUSED", "tcp", other)
			a.want("ok", "shell", "mkdir -p "+root+"/.git && echo x >"+root+"/.git/file && rm -r "+root+"/.git")
			a.want("EACCES", "open", secret+"/key")
		}
	})
}

// TestManagedUnix: with all UNIX sockets a command reaches every path, and no TCP, also if its connections are held.
func TestManagedUnix(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		for _, enter := range []func(*testing.T, *Door, sandbox.Profile, Managed) *Held{enterManaged, enterTransparent} {
			root, outside, secret := t.TempDir(), t.TempDir(), t.TempDir()
			door.Private = []string{secret}
			greeter(t, "unix", outside+"/sock")
			greeter(t, "unix", secret+"/sock")
			abstract := greeter(t, "unix", "@"+root).String()[1:]
			other := port(greeter(t, "tcp4", "127.0.0.1:0"))
			held := enter(t, door, managedProfile(root), Managed{AllUnixSockets: true})
			a := puppetIn(t, held, root)
			a.wantTable("managed, all UNIX sockets", map[string]any{
				"root": root, "outside": outside, "secret": secret, "http": port(held.Gate().HTTP().Addr()), "other": other, "abstract": abstract,
			})
		}
	})
}

// TestManagedLevels: the supervisor of a command that may not read everything does more
// calls, and connects to the proxy alone all the same.
func TestManagedLevels(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		for visible, level := range map[bool]string{false: "supervised:S", true: "supervised:R"} {
			door.Operator.VisibleMetadata = visible
			root, secret := t.TempDir(), t.TempDir()
			put(t, secret+"/key", "")
			other := port(greeter(t, "tcp4", "127.0.0.1:0"))
			profile := managedProfile(root)
			profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: secret, Access: sandbox.Denied})
			held := enterManaged(t, door, profile, Managed{})
			if layer == "proxy:supervised" && !slices.Contains(held.Layers, level) {
				t.Errorf("layers %q, want %s", held.Layers, level)
			}
			a := puppetIn(t, held, root)
			a.want("ECONNREFUSED ok", "again", other, port(held.Gate().HTTP().Addr()))
			a.want("EPERM", "socket", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
			a.want("EPERM", "socket", unix.AF_UNIX, unix.SOCK_STREAM, 0)
			a.want("EACCES", "open", secret+"/key")
		}
	})
}

// TestManagedLimited: a command with limits has a second init, and the same gate.
func TestManagedLimited(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		root := t.TempDir()
		door.Limits = Limits{CPUSeconds: 3600}
		other := port(greeter(t, "tcp4", "127.0.0.1:0"))
		held := enterManaged(t, door, managedProfile(root), Managed{})
		a := puppetIn(t, held, root)
		a.want("ECONNREFUSED ok", "again", other, port(held.Gate().HTTP().Addr()))
	})
}

// TestManagedUnenforceable: where the host has neither way nothing is run.
func TestManagedUnenforceable(t *testing.T) {
	t.Parallel()
	for name, host := range map[string]sandbox.Host{
		"namespaces but for the network": {Layers: full().Layers.With(sandbox.UserNotify).Without(sandbox.NetNS), Landlock: 7,
			Reasons: map[sandbox.Layer]sandbox.Reason{sandbox.NetNS: {Error: "reason", Remedy: "remedy"}}},
		"Landlock alone":               {Layers: sandbox.LayersOf(sandbox.Seccomp), Landlock: 7},
		"a supervisor without scopes":  {Layers: sandbox.LayersOf(sandbox.Seccomp, sandbox.Supervised), Landlock: 5},
		"a supervisor that is refused": {},
	} {
		door := &Door{Host: func() (sandbox.Host, error) { return host, nil }, Served: new(resolve.Served)}
		_, err := door.EnterManaged(managedProfile(t.TempDir()), Managed{})
		lacks, ok := errors.AsType[*sandbox.UnenforceableError](err)
		if !ok || lacks.Reason == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// managedPrograms connect to a proxy at $PORT, each in its own way, and print the page.
var managedPrograms = map[string][]string{
	"curl":    {"curl", "-sS", "-m", "100", "http://name.test/page"},
	"wget":    {"wget", "-qO-", "http://name.test/page"},
	"python3": {"python3", "-c", "import urllib.request as r, sys; sys.stdout.write(r.urlopen('http://name.test/page').read().decode())"},
	"node": {"node", "-e", `require('http').get({host: '127.0.0.1', port: process.env.PORT, path: 'http://name.test/page'},
		r => r.pipe(process.stdout))`},
	"perl": {"perl", "-MIO::Socket::INET", "-e", `$s = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ENV{PORT}) or die;
		print $s "GET http://name.test/page HTTP/1.0\r\nHost: name.test\r\n\r\n"; while (<$s>) { $b .= $_ if $h; $h = 1 if /^\r$/ } print $b`},
	"bash": {"bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$PORT; printf 'GET http://name.test/page HTTP/1.0\r\nHost: name.test\r\n\r\n' >&3; sed '1,/^\r$/d' <&3`},
	// It connects sockets of IPv6 to addresses of IPv4.
	"java": {"java", "-Xshare:auto", "Main.java"},
}

const javaMain = `public class Main { public static void main(String[] a) throws Exception {
	var proxy = new java.net.Proxy(java.net.Proxy.Type.HTTP, new java.net.InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))));
	java.net.URI.create("http://name.test/page").toURL().openConnection(proxy).getInputStream().transferTo(System.out); } }`

// slow are the programs that take a second to begin.
var slow = map[string]bool{"java": true, "node": true}

// TestManagedPrograms: programs use their proxy, whichever sockets they make.
func TestManagedPrograms(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		for name, argv := range managedPrograms {
			if _, err := exec.LookPath("/usr/bin/" + name); err != nil || slow[name] && !rig.Runs(rig.Merge) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				root := t.TempDir()
				put(t, root+"/Main.java", javaMain)
				held := rig.Value(door.EnterManaged(managedProfile(root), Managed{}))
				t.Cleanup(held.Release)
				server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "page of "+r.Host)
				})}
				go func() { _ = server.Serve(held.Gate().HTTP()) }()
				t.Cleanup(func() { _ = server.Close() })
				proxy := strconv.Itoa(port(held.Gate().HTTP().Addr()))
				r := startHeld(t, held, procs.Spec{Argv: argv, Dir: root, Env: []string{
					"PATH=/usr/bin:/bin", "HOME=" + root, "TMPDIR=" + root, "PORT=" + proxy, "http_proxy=http://127.0.0.1:" + proxy,
				}})
				wantEnd(t, "the page", r, "page of name.test", 0)
			})
		}
	})
}
