// Package executor connects an agent, or agent forward, to a registry: remote mode.
//
// [Flags] are the flags of remote mode. [NewRemote] checks them and reads the environment into a
// [SignIn], the credentials for the registry. [Remote.Run] registers and serves streams.
package executor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/internal/relay/wire"
)

// Flags are the flags of remote mode (remote.md 2). A pointer is nil if the flag was not given,
// because an empty value has a meaning. TLSCA is ignored without --remote: clients have the same variable.
type Flags struct {
	Remote          *string `env:"AGENT_REMOTE" group:"remote" placeholder:"URL" help:"Serve as a remote environment instead of listening. URL is the base URL of the registry: https, or http for this machine."`
	EnvironmentID   *string `env:"AGENT_ENVIRONMENT_ID" name:"environment-id" group:"remote" placeholder:"ID" help:"Environment to register as."`
	Name            string  `env:"AGENT_NAME" group:"remote" placeholder:"TEXT" help:"Accepted for compatibility, but not used."`
	RemoteTransport string  `default:"" enum:",noise,direct" env:"AGENT_REMOTE_TRANSPORT" group:"remote" placeholder:"NAME" help:"noise, the default; or direct, which --aws-sigv4 needs."`
	Transport       string  `default:"" enum:",noise,direct" env:"AGENT_TRANSPORT" group:"remote" placeholder:"NAME" help:"How clients reach this agent through our registry: noise, the default, is encrypted end to end. With direct, whoever runs the registry, or a proxy where TLS ends, can read and change everything; the registry and the clients must ask for direct too."`

	TLSCA string `env:"AGENT_TLS_CA" name:"tls-ca" group:"remote" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM) to trust for the registry. Default: those of this system and of SSL_CERT_FILE."`

	APIKeyFile              string `env:"AGENT_API_KEY_FILE" name:"api-key-file" group:"remote" type:"path" placeholder:"FILE" help:"Sign in with the API key in a file. The file is read again when it has changed or the registry refuses the key. To hide it from confined commands, renew the file in place, or keep it in a folder of its own where no command may write."`
	UseAgentIdentityAuth    bool   `env:"AGENT_USE_AGENT_IDENTITY_AUTH" group:"remote" help:"Sign in with the agent identity in CODEX_ACCESS_TOKEN."`
	RegistrationBearerStdin bool   `env:"AGENT_REGISTRATION_BEARER_STDIN" group:"remote" help:"Sign in with the bearer token on the first line of standard input."`
	ExecutorCredentialStdin bool   `env:"AGENT_EXECUTOR_CREDENTIAL_STDIN" group:"remote" help:"Sign in with the newest of the credentials on standard input, one JSON object on each line."`
	ChatGPTTokenStdin       bool   `env:"AGENT_CHATGPT_TOKEN_STDIN" name:"chatgpt-token-stdin" group:"remote" help:"Sign in with the ChatGPT access token on the first line of standard input; https only."`
	ChatGPTAccountID        string `env:"AGENT_CHATGPT_ACCOUNT_ID" name:"chatgpt-account-id" group:"remote" placeholder:"ID" help:"Account that the token of --chatgpt-token-stdin must be for."`

	AWSSigV4   bool    `env:"AGENT_AWS_SIGV4" name:"aws-sigv4" group:"remote" help:"Sign in with AWS signatures. The credentials come from the environment, the shared files, or the endpoints of containers and instances. Needs --remote-transport direct."`
	AWSProfile string  `env:"AGENT_AWS_PROFILE" name:"aws-profile" group:"remote" placeholder:"NAME" help:"Profile of the shared files. With it, the keys in the environment are ignored."`
	AWSRegion  string  `env:"AGENT_AWS_REGION" name:"aws-region" group:"remote" placeholder:"REGION" help:"Region to sign for. Default: AWS_REGION, else the profile's region, else the instance's region."`
	AWSService *string `env:"AGENT_AWS_SERVICE" name:"aws-service" group:"remote" placeholder:"NAME" help:"Service to sign for. Default: execute-api."`

	ExitOnStdinClose bool `env:"AGENT_EXIT_ON_STDIN_CLOSE,CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE" group:"remote" help:"End, with exit code 0, at the end of standard input."`
}

// Usage returns an error if the flags contradict each other or a flag is missing. Then the command
// line is wrong, and the exit code is 2.
func (f *Flags) Usage() error {
	if f.Remote == nil {
		if given := f.given(); given != "" {
			return fmt.Errorf("%s needs --remote", given)
		}
		return nil
	}
	sources := f.sources()
	switch {
	case f.EnvironmentID == nil:
		return errors.New("--remote needs --environment-id")
	case len(sources) > 1:
		return fmt.Errorf("%s and %s cannot be used together", sources[0], sources[1])
	case f.Transport != "" && f.RemoteTransport != "" && f.Transport != f.RemoteTransport:
		return errors.New("--transport and --remote-transport name different transports")
	case f.RemoteTransport == transportDirect && !f.AWSSigV4:
		return errors.New("--remote-transport direct needs --aws-sigv4; for our registry, see --transport")
	case !f.AWSSigV4 && (f.AWSProfile != "" || f.AWSRegion != "" || f.AWSService != nil):
		return errors.New("--aws-profile, --aws-region and --aws-service need --aws-sigv4")
	case f.ChatGPTAccountID != "" && !f.ChatGPTTokenStdin:
		return errors.New("--chatgpt-account-id needs --chatgpt-token-stdin")
	}
	return nil
}

// given returns a flag that was given although it needs --remote, or "". It does not check
// --environment-id and --name, because they are ignored without --remote, as in the reference
// (remote.md 2).
func (f *Flags) given() string {
	if sources := f.sources(); len(sources) > 0 {
		return sources[0]
	}
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--remote-transport", f.RemoteTransport != ""},
		{"--chatgpt-account-id", f.ChatGPTAccountID != ""},
		{"--exit-on-stdin-close", f.ExitOnStdinClose},
		{"--transport", f.Transport != ""},
		{"--aws-profile", f.AWSProfile != ""},
		{"--aws-region", f.AWSRegion != ""},
		{"--aws-service", f.AWSService != nil},
	} {
		if flag.given {
			return flag.name
		}
	}
	return ""
}

// sources returns the given flags that name the source of the credential.
func (f *Flags) sources() []string {
	var names []string
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--api-key-file", f.APIKeyFile != ""},
		{"--use-agent-identity-auth", f.UseAgentIdentityAuth},
		{"--registration-bearer-stdin", f.RegistrationBearerStdin},
		{"--executor-credential-stdin", f.ExecutorCredentialStdin},
		{"--chatgpt-token-stdin", f.ChatGPTTokenStdin},
		{"--aws-sigv4", f.AWSSigV4},
	} {
		if flag.given {
			names = append(names, flag.name)
		}
	}
	return names
}

// configuration returns an error if the flags ask for something that the agent cannot do. The exit
// code is then 1, as in the reference (remote.md 2).
func (f *Flags) configuration() error {
	switch {
	case f.AWSSigV4 && !f.Direct():
		return errors.New("--aws-sigv4 needs --remote-transport direct, because it signs only requests of the direct transport")
	case f.AWSService != nil && strings.TrimSpace(*f.AWSService) == "":
		return errors.New("--aws-service must not be empty")
	case !wire.ValidEnvironmentID(f.id()):
		return errors.New("--environment-id must be 1 to 256 of A-Z, a-z, 0-9, _ and -")
	}
	return nil
}

// transportDirect is the value of both flags that name a transport.
const transportDirect = "direct"

// Direct reports whether the reference's flag or our flag chooses the direct transport.
func (f *Flags) Direct() bool {
	return f.RemoteTransport == transportDirect || f.Transport == transportDirect
}

// id returns the id of the environment without the blanks around it. The flag must be given.
func (f *Flags) id() string { return strings.TrimSpace(*f.EnvironmentID) }
