package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// wordFlags are the operator's last word about the sandboxes of requests (docs/operator.md).
type wordFlags struct {
	SandboxDefault string `env:"AGENT_SANDBOX_DEFAULT" group:"sandbox" placeholder:"PROFILE" help:"Sandbox of file requests, processes and sockets whose clients ask for none. PROFILE is read-only, or workspace:DIR, which also lets DIR, /tmp and TMPDIR be written; with ,network at its end there is a network, else none; several are joined by commas. Or it is a file (/DIR/FILE, ./FILE or FILE.json) as for agent sandbox --policy."`
	SandboxCeiling string `env:"AGENT_SANDBOX_CEILING" group:"sandbox" placeholder:"PROFILE" help:"No file request, process or socket gets more than this PROFILE, whatever its client asks for: for each path, the lesser access of the two holds. Without a network in it, there is no network for clients at all, not even a proxy."`
	RequireSandbox bool   `env:"AGENT_REQUIRE_SANDBOX" group:"sandbox" help:"Refuse requests that would not be confined: those without a sandbox, and those whose sandbox does not restrict files. With --sandbox-default they get the default, and with --sandbox-ceiling the ceiling."`
}

// operatorWord is what the flags say: each profile, or nil, and the files that they were read from.
type operatorWord struct {
	standard, ceiling *protocol.Sandbox
	files             []string
}

// read reads the profiles. environ has the TMPDIR of the agent.
func (f *wordFlags) read(environ []string) (w operatorWord, err error) {
	for _, named := range []struct {
		flag, text string
		to         **protocol.Sandbox
	}{{"--sandbox-default", f.SandboxDefault, &w.standard}, {"--sandbox-ceiling", f.SandboxCeiling, &w.ceiling}} {
		if named.text == "" {
			continue
		}
		s, file, err := namedSandbox(named.text)
		if err == nil {
			err = restricts(s, sandbox.TmpDir(environ))
		}
		if err != nil {
			return w, fmt.Errorf("%s %s: %w", named.flag, named.text, err)
		}
		*named.to = s
		if file != "" {
			w.files = append(w.files, file)
		}
	}
	return w, nil
}

// restricts returns an error if a profile cannot be compiled without a request, or restricts nothing.
func restricts(s *protocol.Sandbox, tmpDir string) error {
	p, err := profile.Of(s, "", tmpDir)
	if err != nil {
		return err
	}
	policy, err := p.Compile()
	if err == nil && policy.RestrictsNothing() {
		err = errors.New("it restricts neither files nor the network")
	}
	return err
}

// namedSandbox returns the sandbox that a profile of the operator stands for, and the file that it was
// read from, if any. It is the only place that knows the names of profiles.
func namedSandbox(text string) (s *protocol.Sandbox, file string, err error) {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ".json") && !strings.Contains(text, ":") {
		if file, err = program.Abs(text); err == nil {
			s, err = readPolicy(file, strings.NewReader(""))
		}
		return s, file, err
	}
	special := func(kind, access string) protocol.SandboxEntry {
		return protocol.SandboxEntry{Access: access, Path: protocol.SandboxPath{Type: "special", Value: &protocol.SpecialPlace{Kind: kind}}}
	}
	rules := &protocol.FileSystemRules{Type: protocol.FileSystemRestricted}
	network := protocol.NetworkRestricted
	for word := range strings.SplitSeq(text, ",") {
		dir, isWorkspace := strings.CutPrefix(word, "workspace:")
		switch {
		case word == "network":
			network = protocol.NetworkEnabled
		case word == "read-only":
			rules.Entries = append(rules.Entries, special("root", "read"))
		case isWorkspace && filepath.IsAbs(dir):
			rules.Entries = append(rules.Entries, special("root", "read"), special("slash_tmp", "write"), special("tmpdir", "write"),
				protocol.SandboxEntry{Access: "write", Path: protocol.SandboxPath{Type: "path", Path: new(protocol.NewPathURI(filepath.Clean(dir)))}})
		case isWorkspace, word == "workspace":
			return nil, "", errors.New("workspace needs the absolute path of a directory, such as workspace:/srv/w, because not every request says what its workspace is")
		default:
			return nil, "", fmt.Errorf("there is no profile %q: use read-only, workspace:DIR, or a file such as ./policy.json; add ,network for a network", word)
		}
	}
	if len(rules.Entries) == 0 {
		return nil, "", errors.New("network alone says nothing about files: use read-only,network or workspace:DIR,network")
	}
	return &protocol.Sandbox{
		Permissions:         protocol.Permissions{Type: protocol.PermissionsManaged, Network: network, FileSystem: rules},
		WindowsSandboxLevel: protocol.WindowsSandboxDisabled,
	}, "", nil
}
