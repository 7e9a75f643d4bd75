package rig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Site is a registry with one key of each role, and the output of all its programs. Open starts
// it, and keeps the fields that the caller has set before.
type Site struct {
	Address  string   // of the registry, or of a proxy before it
	Data     string   // folder of the registry's state; empty if Environ names the place
	Environ  []string // variables of the registry
	Args     []string // further arguments of "registry serve"
	Pattern  string   // of the environments of the keys
	Program  string   // the registry's program; empty for the program of this tree
	Executor string   // key
	Harness  string   // key
	Registry *Program
	Log      *Transcript
}

// NewSite starts a registry for the environments ci-*. args are further arguments of the registry.
// Everything ends with the test.
func NewSite(t T, args ...string) *Site {
	t.Helper()
	s := &Site{Pattern: "ci-*", Args: args}
	s.Open(t)
	return s
}

// Open chooses an address, a folder and a log if the site has none, creates the keys and starts the
// registry.
func (s *Site) Open(t T) {
	t.Helper()
	if s.Address == "" {
		s.Address = FreeAddress(t)
	}
	if s.Data == "" && s.Environ == nil {
		s.Data = filepath.Join(t.TempDir(), "data")
	}
	if s.Log == nil {
		s.Log = &Transcript{}
	}
	s.CreateKeys(t)
	s.StartRegistry(t)
}

// At returns the same site for programs that reach its registry at another address.
func (s *Site) At(address string) *Site {
	there := *s
	there.Address = address
	return &there
}

// URL returns the URL of the registry.
func (s *Site) URL() string { return "http://" + s.Address }

// CreateKeys creates the keys of the site.
func (s *Site) CreateKeys(t T) {
	t.Helper()
	s.Executor, _ = s.CreateKey(t, "executor")
	s.Harness, _ = s.CreateKey(t, "harness")
}

// keyID matches the line in which the registry prints the id of a new key.
var keyID = regexp.MustCompile(`the id of the key is (\S+)`)

// CreateKey creates another key and returns its id too.
func (s *Site) CreateKey(t T, role string) (key, id string) {
	t.Helper()
	cmd := s.registry(t, "keys", "create", "--role", role, "--environment", s.Pattern)
	var told bytes.Buffer
	cmd.Stderr = io.MultiWriter(&told, s.Log)
	out, err := cmd.Output()
	found := keyID.FindSubmatch(told.Bytes())
	if err != nil || found == nil {
		t.Fatalf("creating a key: %v\n%s", err, &told)
	}
	return strings.TrimSpace(string(out)), string(found[1])
}

// Ask runs a command of the registry's program on the state of this site and returns its output.
func (s *Site) Ask(t T, command ...string) string {
	t.Helper()
	cmd := s.registry(t, command...)
	cmd.Stderr = s.Log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("registry %s: %v\n%s", strings.Join(command, " "), err, s.Log)
	}
	return string(out)
}

// registry returns a command of the registry's program.
func (s *Site) registry(t T, command ...string) *exec.Cmd {
	t.Helper()
	cmd := Command(t, s.program(t), append(command, s.state()...)...)
	cmd.Env = append(os.Environ(), s.Environ...)
	return cmd
}

// program returns the path of the registry's program.
func (s *Site) program(t T) string {
	t.Helper()
	if s.Program != "" {
		return s.Program
	}
	return Registry(t)
}

// state returns the flag that names the folder of the state.
func (s *Site) state() []string {
	if s.Data == "" {
		return nil
	}
	return []string{"--data", s.Data}
}

// StartRegistry starts the registry, or starts it again with the same address and state, and waits
// until it is ready.
func (s *Site) StartRegistry(t T) {
	t.Helper()
	args := append([]string{"serve", "--listen", s.Address}, s.state()...)
	s.Registry = s.Start(t, s.program(t), s.Environ, nil, append(args, s.Args...)...)
	s.Registry.Until(t, "the registry is ready", func() bool { return Status(s.URL()+"/readyz") == http.StatusOK })
}

// Start starts a program with these variables besides PATH and HOME. Its output is in the site's
// log too.
func (s *Site) Start(t T, path string, environ []string, stdin *os.File, args ...string) *Program {
	t.Helper()
	// The command does not use the test's context, because a killed program does not show how it
	// would have ended.
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = s.Log, s.Log
	return Start(t, cmd)
}

// Serve starts an agent as executor of the environment and waits until it is connected.
func (s *Site) Serve(t T, environment string, args ...string) *Program {
	t.Helper()
	args = append([]string{"--remote", s.URL(), "--environment-id", environment}, args...)
	p := s.Start(t, Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil, args...)
	p.Says(t, "connected to the rendezvous", 1)
	return p
}

// Exec returns a command of "agent exec" through the registry, not yet started.
func (s *Site) Exec(t T, environment string, command ...string) *exec.Cmd {
	t.Helper()
	return s.ExecWith(t, environment, nil, command...)
}

// ExecWith does what Exec does, with further flags.
func (s *Site) ExecWith(t T, environment string, flags []string, command ...string) *exec.Cmd {
	t.Helper()
	args := append([]string{"exec", "--registry", s.URL(), "--environment-id", environment}, flags...)
	cmd := Command(t, Agent(t), append(append(args, "--"), command...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "AGENT_REGISTRY_TOKEN=" + s.Harness}
	cmd.Stderr = s.Log
	return cmd
}

// Run runs a command that must succeed and returns its output.
func (s *Site) Run(t T, environment string, command ...string) string {
	t.Helper()
	out, err := s.Exec(t, environment, command...).Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, s.Log)
	}
	return string(out)
}

// Silent waits until nobody listens at an address. A child that a killed program had just forked may
// hold its listener for a moment.
func Silent(t T, network, address string) {
	t.Helper()
	Until(t, "nobody listens at "+address, func() bool {
		conn, err := net.Dial(network, address)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

// FreeAddress returns a local address on which nothing listens. Until the test ends, the kernel
// gives its port, to listen or to connect, only to programs that name the port. So a program of the
// test can listen there, end and, when the address is [Silent], listen there again.
func FreeAddress(t T) string {
	t.Helper()
	// A socket that is bound and does not listen reserves the port. Connections are refused
	// meanwhile. SO_REUSEADDR at both sockets lets another socket listen; Go's listeners set it.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	); err != nil {
		t.Fatalf("%v", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(address.(*unix.SockaddrInet4).Port))
}

// Status returns the status of the answer to a GET, or 0 without an answer.
func Status(url string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// Within returns what comes from a channel, at the latest after the limit.
func Within[V any](t T, limit time.Duration, what string, from <-chan V) (v V) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(limit):
		t.Fatalf("%s does not come", what)
	}
	return v
}

// Until waits until happened returns true.
func Until(t T, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(Patience)
	for !happened() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waiting until %s: it takes too long", what)
		}
	}
}
