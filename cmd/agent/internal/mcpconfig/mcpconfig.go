// Package mcpconfig is what agent mcp tells agent-mcp. The agent reads the command line, and becomes
// agent-mcp ([Config.Become]), which reads the rest of what it needs from a file in memory ([Read]).
//
// The two are different programs, because the library for MCP would make the agent larger than it may be.
// The grammar of the command line, with its variables, files, help and completion, is in the agent alone.
package mcpconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/transport"
)

// Program is the name of the program that serves MCP.
const Program = "agent-mcp"

// Stdio is the value of Listen for standard input and output.
const Stdio = "stdio"

// Config is what an MCP server needs to know.
type Config struct {
	Version string // of the agent

	Target target.Flags // the agent that the commands run on
	// Agent is the command that starts an agent on its standard input and output, because Target names none;
	// nil: Target names one.
	Agent []string

	Policy    policy.Flags
	Confined  bool // commands and file operations have a sandbox
	NetworkOn bool // a confined command has the network of the host
	Plain     bool // a proxy is not transparent
	Refusals  bool // results say what a sandbox has refused
	// Start are members of process/start that all commands have: NetworkProxy, ExecApproval and Limits.
	Start *Start

	Env   map[string]string // of -e
	Dir   string            // of -C
	Roots []string          // of --root; nil: paths are not limited

	Session string // "": a new name, or none with Agent
	Retain  *time.Duration
	Ask     bool // questions go to the user of the client; else the answer is no
	Data    bool // answers are data, too

	Listen  string // Stdio, or the host and port of an HTTP server
	Auth    transport.AuthOptions
	Token   string   // file with a new token, which is removed at the end; ""
	Origins []string // web pages with these origins may use the HTTP server
}

// Start are [protocol.StartParams], in the form of the wire.
type Start protocol.StartParams

// MarshalJSON returns the form of the wire. Members that every start must have are filled in.
func (s *Start) MarshalJSON() ([]byte, error) {
	params := protocol.StartParams(*s)
	params.ProcessID, params.Argv, params.Cwd, params.Env = "p", []string{"p"}, protocol.NewPathURI("/"), map[string]string{}
	return json.Marshal(&params)
}

// UnmarshalJSON reads the form of the wire.
func (s *Start) UnmarshalJSON(raw []byte) error {
	return protocol.UnmarshalParams(raw, (*protocol.StartParams)(s))
}

// Find returns the path of agent-mcp: beside this program, or in PATH.
func Find() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), Program)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath(Program)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the program %s, which serves MCP, is missing: put it beside %s, or into a folder of PATH; it is in the same archive, and \"make build\" makes both", Program, self)
	}
	return found, err
}

// Become replaces this program by the program at path, which gets c and the environment. It returns only an error.
func (c *Config) Become(path string, environ []string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("mcp", 0) // without MFD_CLOEXEC: the program reads it
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "mcp")
	defer file.Close()
	if _, err = file.Write(text); err == nil {
		err = syscall.Exec(path, []string{path, strconv.Itoa(fd)}, environ)
	}
	return fmt.Errorf("starting %s: %w", path, err)
}

// Read reads what an agent has told this program, whose only argument is a descriptor. It closes the descriptor.
// version is that of this program. A Config that comes with an error is not to be used, but its Token is to be removed.
func Read(args []string, version string) (*Config, error) {
	usage := errors.New("this program is started by \"agent mcp\": see agent mcp --help")
	if len(args) != 1 {
		return nil, usage
	}
	fd, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil || fd <= 2 {
		return nil, usage
	}
	file := os.NewFile(uintptr(fd), "mcp")
	defer file.Close()
	text, err := program.ReadFile("/proc/self/fd/"+args[0], 64<<20)
	if err != nil {
		return nil, usage
	}
	c := new(Config)
	from := json.NewDecoder(bytes.NewReader(text))
	from.DisallowUnknownFields()
	if err := from.Decode(c); err != nil || c.Version != version {
		return c, errors.Join(fmt.Errorf("agent and %s are of different versions: install both of the same release", Program), err)
	}
	// Check also sets what is made of the flags.
	return c, errors.Join(c.Target.Check(), c.Policy.Check())
}
