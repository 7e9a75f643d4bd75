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
	SandboxDefault string `env:"AGENT_SANDBOX_DEFAULT" group:"sandbox" placeholder:"PROFILE" help:"Sandbox of file requests, processes and sockets whose clients ask for none. PROFILE is read-only, or workspace:DIR, which also lets DIR, /tmp and TMPDIR be written. Commas join several directories: workspace:/a,workspace:/b. With ,network at the end there is a network, else none. PROFILE can also be a file as for agent sandbox --policy: /DIR/FILE, ./FILE or FILE.json."`
	SandboxCeiling string `env:"AGENT_SANDBOX_CEILING" group:"sandbox" placeholder:"PROFILE" help:"Sandbox that no file request, process or socket exceeds, whatever its client asks for: each path gets the lesser access of the two. If PROFILE has no network, clients get no network at all, not even a proxy. PROFILE is as for --sandbox-default."`
	RequireSandbox bool   `env:"AGENT_REQUIRE_SANDBOX" group:"sandbox" help:"Refuse requests that would not be confined: those without a sandbox, and those whose sandbox does not restrict files. With --sandbox-default such a request gets the default instead, and else with --sandbox-ceiling the ceiling, if that restricts files."`
	TellRefusals   bool   `env:"AGENT_TELL_REFUSALS" group:"sandbox" help:"Let each process end with lines on its standard error: what its sandbox has refused, and what to ask for. For clients that show standard error to a model, such as the Codex CLI. A client that asks for refusals gets no such lines."`
}

// operatorWord has the sandboxes that the flags name; nil: the flag is not set.
type operatorWord struct {
	byDefault, ceiling *protocol.Sandbox
	files              []string // the files that the sandboxes were read from
}

// read reads the profiles. environ has the TMPDIR of the agent.
func (f *wordFlags) read(environ []string) (w operatorWord, err error) {
	for _, named := range []struct {
		flag, text string
		to         **protocol.Sandbox
	}{{"--sandbox-default", f.SandboxDefault, &w.byDefault}, {"--sandbox-ceiling", f.SandboxCeiling, &w.ceiling}} {
		if named.text == "" {
			continue
		}
		s, file, err := namedSandbox(named.text)
		if err == nil {
			err = checkRestricts(s, sandbox.TmpDir(environ))
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

// checkRestricts returns an error if a sandbox cannot be compiled without a request, or restricts nothing.
func checkRestricts(s *protocol.Sandbox, tmpDir string) error {
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

// namedSandbox returns the sandbox that a PROFILE of the operator stands for, and the file that the sandbox was
// read from, if any. These names are not those of --profile, which package policy knows.
func namedSandbox(text string) (s *protocol.Sandbox, file string, err error) {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ".json") && !strings.Contains(text, ":") {
		if file, err = program.Abs(text); err == nil {
			s, err = readPolicy(file, strings.NewReader(""))
		}
		return s, file, err
	}
	p := sandbox.Profile{}
	for word := range strings.SplitSeq(text, ",") {
		dir, isWorkspace := strings.CutPrefix(word, "workspace:")
		switch {
		case word == "network":
			p.Network = sandbox.NetworkEnabled
		case word == "read-only":
			p.Entries = append(p.Entries, sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read})
		case isWorkspace && filepath.IsAbs(dir):
			// WorkspaceWrite would name the directory as a workspace root, which depends on the request.
			p.Entries = append(p.Entries,
				sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read},
				sandbox.Entry{Place: sandbox.PlaceSlashTmp, Access: sandbox.Write},
				sandbox.Entry{Place: sandbox.PlaceTmpDir, Access: sandbox.Write},
				sandbox.Entry{Path: filepath.Clean(dir), Access: sandbox.Write})
		case isWorkspace, word == "workspace":
			return nil, "", errors.New("workspace needs the absolute path of a directory, such as workspace:/srv/w, because not every request says what its workspace is")
		default:
			return nil, "", fmt.Errorf("there is no profile %q: use read-only, workspace:DIR, or a file such as ./policy.json; add ,network for a network", word)
		}
	}
	if len(p.Entries) == 0 {
		return nil, "", errors.New("network alone says nothing about files; use read-only,network or workspace:DIR,network")
	}
	return profile.Wire(&p), "", nil
}
