// Command netbench measures what a managed network costs a command, transparent and through SOCKS5 side by side, in
// namespaces and supervised, in one run:
//
//	make bench-network
//
// It starts a server in a network of its own, and itself below agent sandbox --network allow=SERVER. It measures the
// time to the first echoed byte, throughput, the memory of idle connections and the start of a command. Then it makes
// connections, 100 at once, and gives up every tenth: the others must lead to the server, and nothing may be left.
//
// It needs Linux and root. Compare figures of one run, because machines are noisy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// The first argument of this program where it measures inside of the sandbox.
const inside = "measure"

// network are public addresses that the network of this program has. The connects take turns between some of them,
// because one address has only 28,000 ports to come from in the minute that a closed connection keeps its port.
const network, addresses = "11.22.33.", 16

func main() {
	if len(os.Args) > 1 && os.Args[1] == inside {
		exit(measure(os.Args[2:]))
	}
	var b bench
	flag.StringVar(&b.agent, "agent", "bin/agent", "our program")
	flag.StringVar(&b.launcher, "nouserns", "bin/nouserns", "the launcher of test/rig/nouserns; empty where the machine has no user namespaces")
	flag.StringVar(&b.only, "only", "", "namespaces or supervised; empty is both")
	flag.IntVar(&b.connects, "connects", 100_000, "how many connections to make and give up")
	flag.IntVar(&b.rounds, "rounds", 3, "rounds over everything but the connects")
	own := flag.Bool("in-own-network", false, "internal: the process has a network of its own")
	flag.Parse()
	if !*own {
		exit(relaunch())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(b.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "netbench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// relaunch runs this program again in a network of its own.
func relaunch() error {
	cmd := exec.Command("/proc/self/exe", append([]string{"-in-own-network"}, os.Args[1:]...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// raise gives the interface lo the addresses of network. The kernel takes all of them for its own,
// because lo has the whole network (netdevice(7)).
func raise() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, set := range []struct {
		what uint
		to   [4]byte
	}{{unix.SIOCSIFADDR, [4]byte{11, 22, 33, 1}}, {unix.SIOCSIFNETMASK, [4]byte{255, 255, 255, 0}}} {
		alias, err := unix.NewIfreq("lo:1")
		if err != nil {
			return err
		}
		if err := errors.Join(alias.SetInet4Addr(set.to[:]), unix.IoctlIfreq(fd, set.what, alias)); err != nil {
			return fmt.Errorf("setting the address of lo: %w", err)
		}
	}
	return linux.RaiseLoopback()
}

// bench is one run.
type bench struct {
	agent, launcher, only string
	connects, rounds      int

	self string // this program
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if err := raise(); err != nil {
		return err
	}
	s, err := serve()
	if err != nil {
		return err
	}
	defer s.close()
	port := s.port()
	for _, kind := range []string{"namespaces", "supervised"} {
		if b.only != "" && b.only != kind {
			continue
		}
		fmt.Println(kind)
		for range b.rounds {
			if err := b.starts(ctx, kind, port); err != nil {
				return err
			}
			if err := b.command(ctx, kind, port, "speed").Run(); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			if err := b.memory(ctx, kind, port); err != nil {
				return err
			}
		}
		if b.connects == 0 {
			continue
		}
		if err := b.command(ctx, kind, port, "connects", fmt.Sprint(b.connects)).Run(); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		if err := s.idle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sandbox returns the command line of agent sandbox with some flags.
func (b *bench) sandbox(kind string, flags ...string) []string {
	argv := append([]string{b.agent, "sandbox", "--show-secrets"}, flags...)
	if kind == "supervised" && b.launcher != "" {
		argv = append([]string{b.launcher, "--"}, argv...)
	}
	return append(argv, "--")
}

// command returns this program below agent sandbox.
func (b *bench) command(ctx context.Context, kind, port string, args ...string) *exec.Cmd {
	argv := append(b.sandbox(kind, "--network", allowed(port)), b.self, inside, port)
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout = os.Stdout
	cmd.Stderr = quiet{}
	return cmd
}

// allowed is the value of --network that allows all addresses.
func allowed(port string) string {
	var all []string
	for i := range addresses {
		all = append(all, place(i, port))
	}
	return "allow=" + strings.Join(all, ",")
}

// place returns one of the addresses, with the port.
func place(i int, port string) string { return fmt.Sprint(network, 1+i%addresses, ":", port) }

// quiet passes on errors, and not the lines about what was reached.
type quiet struct{}

func (quiet) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if !strings.Contains(line, "network: reached") {
			fmt.Fprint(os.Stderr, line)
		}
	}
	return len(p), nil
}

// starts prints how long agent sandbox -- true takes without a network, with a proxy alone, and transparently.
func (b *bench) starts(ctx context.Context, kind, port string) error {
	const times = 40
	for _, way := range []struct {
		name  string
		flags []string
	}{
		{"none", nil},
		{"proxy", []string{"--network", allowed(port), "--no-transparent"}},
		{"transparent", []string{"--network", allowed(port)}},
	} {
		var took []time.Duration
		for range times {
			argv := append(b.sandbox(kind, way.flags...), "true")
			began := time.Now()
			if err := exec.CommandContext(ctx, argv[0], argv[1:]...).Run(); err != nil {
				return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
			}
			took = append(took, time.Since(began))
		}
		fmt.Printf("  start, %s: %.2f ms\n", way.name, ms(median(took)))
	}
	return nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
