package main

import (
	"github.com/execagent/execagent/cmd/internal/manual"
	"github.com/execagent/execagent/internal/build"
)

// completionFlags say for which shell the script is.
type completionFlags struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionFlags) Help() string {
	return `Examples:

    source <(registry completion bash)
    registry completion zsh > "${fpath[1]}/_registry"
    registry completion fish > ~/.config/fish/completions/registry.fish`
}

// manFlags name the page.
type manFlags struct {
	Command []string `arg:"" optional:"" help:"Command that the page is about, as in: registry man keys create. Default: all of it."`
	Dir     string   `type:"path" placeholder:"DIR" help:"Write the pages of all commands to this folder."`
}

func (*manFlags) Help() string {
	return `Examples:

    registry man keys create | man -l -
    registry man --dir /usr/local/share/man/man1`
}

func (f *manFlags) run(sys system) error {
	// A page is read on other machines too: it has nothing of this user.
	parser, _, err := newParser(system{home: "/home/you", stdout: sys.stdout, stderr: sys.stderr})
	if err != nil {
		return err
	}
	app := parser.Model
	if f.Dir != "" {
		return manual.Write(f.Dir, app, build.Version)
	}
	command, err := manual.Find(app, f.Command)
	if err != nil {
		return err
	}
	_, err = sys.stdout.Write(manual.Page(app, command, build.Version))
	return err
}
