package policy

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// Here returns this machine. environ is the environment of the command, and lookup finds a variable of this
// process. The host lacks the directory of the command.
func Here(lookup func(name string) (string, bool), environ []string) Host {
	return Host{Home: HomeOf(lookup), TmpDir: sandbox.TmpDir(environ), Lookup: lookup}
}

// There returns the machine of an agent. It lacks the directory of the command.
func There(ctx context.Context, c *client.Client, info *protocol.EnvironmentInfo) (Host, error) {
	home, err := "", error(nil)
	if !info.UserHomeDir.IsZero() {
		home, err = info.UserHomeDir.Native()
	}
	files := FilesOf(c, info)
	return Host{
		Home:   home,
		Lookup: func(string) (string, bool) { return "", false },
		Abs:    func(word string) (string, error) { return Below(info, word) },
		Real:   func(name string) (string, error) { return files.Canonicalize(ctx, name) },

		NoReplaceable: !info.Capabilities.SandboxReplaceable,
		List: func(dir string) (names []string) {
			entries, _ := files.ReadDir(ctx, dir) // it need not exist
			for _, entry := range entries {
				names = append(names, entry.FileName)
			}
			slices.Sort(names)
			return names
		},
	}, err
}

// FilesOf returns the files of an agent, for the paths of a plan. The operator may give requests without a sandbox
// a default, or refuse them. What such requests find says nothing about what the command will see, so these
// requests have a sandbox that restricts nothing but /sys: one that restricts nothing is refused, too.
func FilesOf(c *client.Client, info *protocol.EnvironmentInfo) *client.FS {
	if !info.Capabilities.SandboxDefault && !info.Capabilities.SandboxRequired {
		return c.FS(nil)
	}
	return c.FS(profile.Wire(&sandbox.Profile{Entries: []sandbox.Entry{
		{Place: sandbox.PlaceRoot, Access: sandbox.Write}, {Path: "/sys", Access: sandbox.Read},
	}}))
}

// At makes the folders of profiles at an agent, and returns the sandbox of requests. If the agent does not know what the
// plan names, that is an error.
func (p *Plan) At(ctx context.Context, c *client.Client, info *protocol.EnvironmentInfo) (*protocol.Sandbox, error) {
	for _, dir := range p.Make {
		if err := FilesOf(c, info).Mkdir(ctx, dir, true); err != nil {
			return nil, fmt.Errorf("making a folder of a profile: %w", err)
		}
	}
	if err := p.known(info.Capabilities); err != nil {
		return nil, err
	}
	return p.Wire(), nil
}

// known returns an error if an agent does not know what the plan names.
func (p *Plan) known(c protocol.Capabilities) error {
	if len(p.Profile.Sockets) > 0 && !c.SandboxUnixSockets {
		return errors.New("this agent does not know policies with UNIX sockets: leave out --socket, or use a newer agent")
	}
	if len(p.Profile.Devices) > 0 && !c.SandboxDevices {
		return errors.New("this agent does not know policies with devices: leave out --device, --gpu and --kvm, or use a newer agent")
	}
	return nil
}

// Below returns the absolute path of name at an agent. A relative path starts at the agent's
// working directory, or at the home of its user if the agent does not report its directory.
func Below(info *protocol.EnvironmentInfo, name string) (string, error) {
	if path.IsAbs(name) {
		return path.Clean(name), nil
	}
	base := info.Cwd
	if base.IsZero() {
		base = info.UserHomeDir
	}
	if base.IsZero() {
		return "", errors.New("the agent does not report its working directory: use an absolute path")
	}
	native, err := base.Native()
	if err != nil {
		return "", err
	}
	return path.Join(native, name), nil
}
