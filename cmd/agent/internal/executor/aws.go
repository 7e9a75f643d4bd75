package executor

import (
	"strings"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/internal/sigv4"
)

// Withhold removes the AWS credentials that sign requests here from the environment of commands. It
// also removes the variables from which a command could get credentials, such as the endpoint of
// the container. No command gets the keys among them in any case (procs.Denied). With a profile,
// the variables are not used here, so commands keep the variables of the container.
func (f *Flags) Withhold(sys program.System) (program.System, error) {
	if f.Remote == nil || !f.AWSSigV4 || f.AWSProfile != "" {
		return sys, nil
	}
	return sys.Withhold(sigv4.Secret)
}

// aws returns where to look for credentials. It has copies of the variables, because the keys in
// the environment are cleared.
func (f *Flags) aws(sys program.System) sigv4.Config {
	variables := make(map[string]string)
	for _, entry := range sys.Environ {
		if name, value, _ := strings.Cut(entry, "="); name == "HOME" || strings.HasPrefix(name, "AWS_") {
			variables[name] = value
		}
	}
	for _, entry := range sys.Keys {
		if name, value, _ := strings.Cut(string(entry), "="); strings.HasPrefix(name, "AWS_") {
			variables[name] = value
		}
	}
	cfg := sigv4.Config{Profile: f.AWSProfile, Region: f.AWSRegion, Check: secretfile.Refuse, Lookup: func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}}
	if f.AWSService != nil {
		cfg.Service = strings.TrimSpace(*f.AWSService)
	}
	return cfg
}
