package main

// completionFlags name the shell of the script.
type completionFlags struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionFlags) Help() string {
	return `Examples:

    source <(registry completion bash)
    registry completion zsh > "${fpath[1]}/_registry"
    registry completion fish > ~/.config/fish/completions/registry.fish`
}

func (f *completionFlags) run(sys system) error {
	_, err := sys.stdout.Write(commands(sys).Completion(f.Shell))
	return err
}
